package netstate

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Interfaces with a default route in any table are uplinks, with one address each. Others are not.
func TestUplinks(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		for i, name := range []string{"wlan0", "wwan0", "lan0"} {
			link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "peer" + name}
			if err := netlink.LinkAdd(link); err != nil {
				return err
			}
			if peer, err := netlink.LinkByName(link.PeerName); err != nil {
				return err
			} else if err := netlink.LinkSetUp(peer); err != nil {
				return err
			}
			for _, last := range []string{"7", "8"} {
				addr, err := netlink.ParseAddr("10.0." + string(rune('0'+i)) + "." + last + "/24")
				if err != nil {
					return err
				}
				if err := netlink.AddrAdd(link, addr); err != nil {
					return err
				}
			}
			if err := netlink.LinkSetUp(link); err != nil {
				return err
			}
			route := &netlink.Route{LinkIndex: link.Index, Gw: net.IPv4(10, 0, byte(i), 1), Priority: 100 + i}
			if name == "wwan0" {
				route.Table = 77
			}
			if name != "lan0" {
				if err := netlink.RouteAdd(route); err != nil {
					return err
				}
			}
		}
		a, err := OpenAddresses()
		if err != nil {
			return err
		}
		defer a.Close()
		list, err := a.Uplinks()
		if err != nil {
			return err
		}
		var got []string
		for _, u := range list {
			got = append(got, u.Interface+" "+u.Addr.String())
		}
		if len(got) != 2 || got[0] != "wlan0 10.0.0.7" || got[1] != "wwan0 10.0.1.7" {
			t.Errorf("got %q", got)
		}
		return nil
	})
}
