package netstate

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestOnLink(t *testing.T) {
	ns, _ := twoHosts(t)
	for _, command := range [][]string{
		{"address", "add", "198.51.100.7/25", "dev", "eth0"},
		{"address", "add", "2001:db8:0:1::7/128", "dev", "eth0", "nodad"},
		{"route", "add", "2001:db8:0:1::/64", "dev", "eth0"},
		// A router that no prefix covers.
		{"route", "add", "192.0.2.1/32", "dev", "eth0"},
		{"route", "add", "default", "via", "192.0.2.1", "dev", "eth0", "onlink"},
		{"route", "add", "203.0.113.0/24", "via", "inet6", "fd01::9", "dev", "eth0", "table", "7"},
		{"route", "add", "203.0.113.0/24", "table", "8", "nexthop", "via", "10.1.0.8", "nexthop", "via", "10.1.0.9"},
		// A router that answers for the Internet, and what a VPN leads to, have no neighbours.
		{"route", "add", "0.0.0.0/1", "dev", "eth0"},
		{"tuntap", "add", "tun0", "mode", "tun"},
		{"link", "set", "tun0", "up"},
		{"address", "add", "10.9.0.1", "peer", "10.9.0.2/32", "dev", "tun0"},
		{"route", "add", "8.8.0.0/16", "dev", "tun0"},
		// All its own.
		{"route", "add", "local", "192.0.3.0/24", "dev", "lo"},
		{"address", "add", "10.7.0.1/24", "dev", "lo"},
		// Down, or not a link at all.
		{"link", "add", "down0", "type", "veth", "peer", "name", "down1"},
		{"address", "add", "10.8.0.1/24", "dev", "down0"},
		{"address", "add", "10.6.9.1/32", "dev", "lo"},
		{"route", "add", "unreachable", "10.6.0.0/24"},
	} {
		ns.Output(t, "ip", command...)
	}
	got := onLink(t, ns)
	want := []string{"10.1.0.0/24", "10.1.0.8/32", "10.1.0.9/32", "10.7.0.0/24", "10.9.0.1/32", "10.9.0.2/32", "192.0.2.1/32", "192.0.3.0/24", "198.51.100.0/25",
		"2001:db8:0:1::/64", "2001:db8:0:1::7/128", "fd01::/64", "fd01::9/128"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// onLink leaves out link-local and multicast prefixes, which depend on the interface's address.
func onLink(t *testing.T, ns *netnstest.NS) (list []string) {
	t.Helper()
	var found []netip.Prefix
	ns.Must(t, func() error {
		a, err := OpenAddresses()
		if err != nil {
			return err
		}
		defer a.Close()
		found, err = a.OnLink()
		return err
	})
	for _, p := range found {
		if !p.Addr().IsLinkLocalUnicast() && !p.Addr().IsMulticast() {
			list = append(list, p.String())
		}
	}
	return list
}

// The networks behind an interface are those of its link, and those that routers on it lead to.
func TestBehind(t *testing.T) {
	ns, _ := twoHosts(t)
	for _, command := range [][]string{
		{"route", "add", "192.0.2.0/24", "via", "10.1.0.2"},
		{"route", "add", "2001:db8:7::/48", "via", "fd01::2"},
		{"route", "add", "default", "via", "10.1.0.2"},
		{"link", "add", "other0", "type", "veth", "peer", "name", "other1"},
		{"link", "set", "other0", "up"},
		{"link", "set", "other1", "up"},
		{"address", "add", "10.2.0.1/24", "dev", "other0"},
		{"route", "add", "unreachable", "10.6.0.0/24"},
	} {
		ns.Output(t, "ip", command...)
	}
	for _, test := range []struct{ names, want []string }{
		{[]string{"eth0"}, []string{"10.1.0.0/24", "192.0.2.0/24", "2001:db8:7::/48", "fd01::/64", "fe80::/64"}},
		{[]string{"other0", "missing0"}, []string{"10.2.0.0/24", "fe80::/64"}},
		{nil, nil},
	} {
		var got []string
		ns.Must(t, func() error {
			a, err := OpenAddresses()
			if err != nil {
				return err
			}
			defer a.Close()
			found, err := a.Behind(test.names)
			for _, p := range found {
				got = append(got, p.String())
			}
			return err
		})
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%v (-want +got)\n%s", test.names, diff)
		}
	}
}
