package outside

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

func addrs(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// The waypoint hears where others see the host whenever that changes, and that nobody knows.
func TestSeen(t *testing.T) {
	addr, at := netip.MustParseAddr, netip.MustParseAddrPort
	from, noWay := addr("192.168.1.10"), error(nil)
	s := newSeen(nil, func(m string) bool { return m == "coordinator" }, func() (netip.Addr, error) { return from, noWay })
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
	s.seenBy()
	nothing("nobody answered")
	s.seenBy(nat.Sighting{Member: "alice", At: at("198.51.100.7:1")})
	s.seenBy(nat.Sighting{Member: "alice", At: at("198.51.100.7:2")})
	hears("one member answered, twice", egress.Outside{NATs: addrs("198.51.100.7"), Hidden: true})
	s.seenBy(nat.Sighting{Member: "bob", At: at("198.51.100.9:1")})
	hears("another tells something else", egress.Outside{NATs: addrs("198.51.100.7", "198.51.100.9"), Hidden: true})
	s.seenBy(nat.Sighting{Member: "carol", At: at("198.51.100.9:1")})
	hears("two agree", egress.Outside{NATs: addrs("198.51.100.7", "198.51.100.9")})
	s.routed(portmap.State{Mappings: []portmap.Mapping{{External: at("203.0.113.9:45672")}}})
	s.routed(portmap.State{})
	hears("the router answered", egress.Outside{NATs: addrs("198.51.100.7", "198.51.100.9", "203.0.113.9")})
	nothing("it closes the port, and still is there")
	s.passed(addrs("2a00::9"))
	hears("a router in IPv6", egress.Outside{NATs: addrs("198.51.100.7", "198.51.100.9", "203.0.113.9"), Routers: addrs("2a00::9")})
	s.has([]netip.Addr{from})
	nothing("with one more address")
	s.moved()
	hears("in another network", egress.Outside{Hidden: true})
	s.routed(portmap.State{Mappings: []portmap.Mapping{{External: at("100.64.0.9:45672")}}})
	nothing("a router that is behind another one")
	s.seenBy(nat.Sighting{Member: "coordinator", At: at("203.0.113.9:1")})
	hears("a coordinator answered", egress.Outside{NATs: addrs("203.0.113.9")})
	s.moved()
	hears("in another network again", egress.Outside{Hidden: true})
	from = addr("198.51.100.20")
	s.has([]netip.Addr{from})
	hears("with a public address", egress.Outside{})
	noWay, from = errors.New("no route"), netip.Addr{}
	s.moved()
	nothing("without IPv4, which is not hidden either")

	s = newSeen(addrs("198.51.100.7"), func(string) bool { return false }, func() (netip.Addr, error) { return addr("10.0.0.1"), nil })
	hears("named by the operator", egress.Outside{NATs: addrs("198.51.100.7")})
}
