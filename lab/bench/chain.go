package bench

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/lab/testbed"
)

// A chain is a client, a server, and forwarding hosts side by side between them. Each forwarder has its own
// links, so that its cost is not mixed with that of routers:
//
//	client --- forwarder --- server
//	client ----------------- server
//
// The server's address on a forwarder's link is reached through that forwarder.
const clientHost = "client"

// direct is the link without a forwarder. The routes of the other links do not use it.
const direct = "direct"

// openChain builds a chain. The client and the hosts in members are members of the collective.
func openChain(ctx context.Context, o Options, members, others []string) (*network, error) {
	spec := testbed.Spec{Hosts: []testbed.HostSpec{{Name: clientHost}, {Name: serverHost}}, Seed: 1, Backend: testbed.BackendVeth}
	for _, name := range append(append([]string{}, members...), others...) {
		spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: name, Forward: true})
		spec.Links = append(spec.Links,
			testbed.LinkSpec{Name: toClient(name), A: clientHost, B: name},
			testbed.LinkSpec{Name: toServer(name), A: name, B: serverHost})
	}
	const farther = 10
	spec.Links = append(spec.Links, testbed.LinkSpec{Name: direct, A: clientHost, B: serverHost, Cost: farther})
	return openNetwork(ctx, o, spec, append([]string{clientHost}, members...))
}

func toClient(forwarder string) string { return forwarder + "-c" }
func toServer(forwarder string) string { return forwarder + "-s" }

// onLink returns a host's IPv4 address on a link.
func (s *network) onLink(host, link string) netip.Addr {
	addr, _ := s.Host(host).AddrOn(link)
	return addr
}

// limitSegments limits the size, in packets, of the segments that TCP and tunnels pass to the interfaces of some
// hosts.
func (s *network) limitSegments(packets int, hosts ...string) error {
	for _, name := range hosts {
		err := s.Host(name).Do(func() error {
			links, err := netlink.LinkList()
			if err != nil {
				return err
			}
			for _, l := range links {
				if err := netlink.LinkSetGSOMaxSegs(l, packets); err != nil {
					return fmt.Errorf("interface %s: %w", l.Attrs().Name, err)
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("set how many packets %s sends at once: %w", name, err)
		}
	}
	return nil
}
