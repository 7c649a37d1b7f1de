package agent

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/portmap"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// The waypoint hears where others see the host whenever that changes, and that nobody knows.
func TestSeen(t *testing.T) {
	addr, at := netip.MustParseAddr, netip.MustParseAddrPort
	from, noWay := addr("192.168.1.10"), error(nil)
	s := newSeen(nil, func() (netip.Addr, error) { return from, noWay })
	hears := func(what string, want egress.Outside) {
		t.Helper()
		select {
		case got := <-s.news:
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		default:
			t.Errorf("%s: the waypoint hears nothing", what)
		}
	}
	nothing := func(what string) {
		t.Helper()
		select {
		case got := <-s.news:
			t.Errorf("%s: the waypoint hears %+v", what, got)
		default:
		}
	}
	hears("behind a NAT, at first", egress.Outside{Hidden: true})
	s.examined(nil)
	nothing("nobody answered")
	s.examined([]nat.Sighting{{At: at("198.51.100.7:1")}})
	hears("a member answered", egress.Outside{NATs: []netip.Addr{addr("198.51.100.7")}})
	s.examined(nil)
	nothing("nobody answered this time")
	s.routed(portmap.State{Mappings: []portmap.Mapping{{External: at("203.0.113.9:45672")}}})
	s.examined([]nat.Sighting{{At: at("198.51.100.8:1")}})
	hears("the router answered, and the address changed", egress.Outside{NATs: []netip.Addr{addr("198.51.100.8"), addr("203.0.113.9")}})
	s.has([]netip.Addr{from})
	nothing("with one more address")
	s.moved()
	hears("in another network", egress.Outside{Hidden: true})
	from = addr("198.51.100.20")
	s.has([]netip.Addr{from})
	hears("with a public address", egress.Outside{})
	noWay, from = errors.New("no route"), netip.Addr{}
	s.moved()
	nothing("without IPv4, which is not hidden either")

	s = newSeen([]netip.Addr{addr("198.51.100.7")}, func() (netip.Addr, error) { return addr("10.0.0.1"), nil })
	hears("named by the operator", egress.Outside{NATs: []netip.Addr{addr("198.51.100.7")}})
}
