package netstate

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// A home's router answers from the home's network, and its provider's from the link between them.
func TestFirstHops(t *testing.T) {
	t.Parallel()
	host, router, provider := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	for _, ns := range []*netnstest.NS{router, provider} {
		ns.Must(t, func() error {
			// Routers ask for neighbours from link-local addresses: they are to be good at once.
			return errors.Join(SetSysctl("net/ipv6/conf/default/accept_dad", "0"), SetSysctl("net/ipv6/conf/all/forwarding", "1"))
		})
	}
	netnstest.Veth(t, netnstest.End{NS: host, Name: "eth0", Addresses: []string{"2a02:810d:1:2::2/64"}},
		netnstest.End{NS: router, Name: "lan", Addresses: []string{"2a02:810d:1:2::1/64"}})
	netnstest.Veth(t, netnstest.End{NS: router, Name: "wan", Addresses: []string{"2a02:8100:ff:7::2/64"}},
		netnstest.End{NS: provider, Name: "eth0", Addresses: []string{"2a02:8100:ff:7::1/64"}})
	hops := func() (list []netip.Addr, err error) {
		err = host.Do(func() (err error) {
			list, err = FirstHops(t.Context())
			return err
		})
		return list, err
	}
	if got, err := hops(); len(got) > 0 || err == nil {
		t.Errorf("without a route: %v, %v", got, err)
	}
	host.Route(t, "::/0", "2a02:810d:1:2::1")
	router.Route(t, "::/0", "2a02:8100:ff:7::1")
	provider.Route(t, "2a02:810d:1::/48", "2a02:8100:ff:7::2")
	provider.Output(t, "ip", "link", "add", "internet", "type", "veth", "peer", "name", "beyond")
	provider.Output(t, "ip", "link", "set", "internet", "up")
	provider.Output(t, "ip", "route", "add", "2001:503::/32", "dev", "internet")
	want := []netip.Addr{netip.MustParseAddr("2a02:810d:1:2::1"), netip.MustParseAddr("2a02:8100:ff:7::1")}
	if got, err := hops(); err != nil || !slices.Equal(slices.Compact(got), want) {
		t.Errorf("got %v, %v", got, err)
	}
}
