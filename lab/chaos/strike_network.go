package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/detour-collective/dcol/lab/testbed"
)

// linkState is what is wrong with links now: faults may overlap.
type linkState struct {
	mu      sync.Mutex
	changes map[string][]*func(*testbed.LinkParams)
	downs   map[string]int
}

// changeLink has a link be worse for a while.
func (s *striker) changeLink(ctx context.Context, link string, d time.Duration, change func(*testbed.LinkParams)) error {
	err := s.apply(link, func(l *linkState) { l.changes[link] = append(l.changes[link], &change) })
	pause(ctx, d)
	return errors.Join(err, s.apply(link, func(l *linkState) {
		var left []*func(*testbed.LinkParams)
		for _, c := range l.changes[link] {
			if c != &change {
				left = append(left, c)
			}
		}
		l.changes[link] = left
	}))
}

// apply changes what is wrong with a link and tells the network.
func (s *striker) apply(link string, change func(*linkState)) error {
	l := &s.links
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changes == nil {
		l.changes, l.downs = map[string][]*func(*testbed.LinkParams){}, map[string]int{}
	}
	change(l)
	p := s.w.base[link]
	for _, c := range l.changes[link] {
		(*c)(&p)
	}
	return s.w.net.SetLink(link, p, p)
}

// linkDown has a link lose everything for a while.
func (s *striker) linkDown(ctx context.Context, link string, d time.Duration) error {
	err := s.count(link, 1)
	pause(ctx, d)
	return errors.Join(err, s.count(link, -1))
}

func (s *striker) count(link string, n int) error {
	l := &s.links
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.downs == nil {
		l.changes, l.downs = map[string][]*func(*testbed.LinkParams){}, map[string]int{}
	}
	was := l.downs[link] > 0
	l.downs[link] += n
	if is := l.downs[link] > 0; is != was {
		return s.w.net.LinkDown(link, is)
	}
	return nil
}

// dropTCP has a waypoint's TCP vanish on its way to the server and back, as if
// it forwarded nothing, while its sessions live.
func (s *striker) dropTCP(ctx context.Context, waypoint string, d time.Duration) error {
	out, _ := s.w.host(waypoint).AddrOn(outLink(waypoint))
	in := s.w.host(waypoint).Addr4()
	table := fmt.Sprintf("drop-%s-%d", waypoint, time.Now().UnixNano())
	rules := fmt.Sprintf(`table ip %[1]s {
		chain forward {
			type filter hook forward priority 0
			ip saddr { %[2]v, %[3]v } ip daddr %[4]v ip protocol tcp drop
			ip daddr { %[2]v, %[3]v } ip saddr %[4]v ip protocol tcp drop
		}
	}`, table, in, out, s.w.host(server).Addr4())
	if _, err := s.w.run(ctx, far, "nft", rules); err != nil {
		return err
	}
	pause(ctx, d)
	_, err := s.w.run(context.WithoutCancel(ctx), far, "nft", "delete table ip "+table)
	return err
}

// renumber gives the client an address in another network, after a while
// without any.
func (s *striker) renumber(ctx context.Context, gap time.Duration) error {
	w := s.w
	link := w.clientLink()
	atHost, atRouter := w.host(alice).Interface(link), w.host(near).Interface(link)
	w.mu.Lock()
	w.networks++
	network := fmt.Sprintf("10.200.%d", w.networks)
	w.mu.Unlock()
	commands := func(host string, lines ...string) error {
		for _, line := range lines {
			if _, err := w.run(ctx, host, strings.Fields(line)...); err != nil {
				return err
			}
		}
		return nil
	}
	if err := commands(near, fmt.Sprintf("ip addr add %s.1/24 dev %s", network, atRouter)); err != nil {
		return err
	}
	if !w.plan.Emulated { // veth's ends know their neighbours by name only
		if err := w.acquaint(ctx, network, atHost, atRouter); err != nil {
			return err
		}
	}
	if err := commands(alice, "ip -4 addr flush dev "+atHost); err != nil { // and with it the routes
		return err
	}
	pause(ctx, gap)
	addr := netip.MustParseAddr(network + ".2")
	w.mu.Lock()
	w.alice = addr
	w.mu.Unlock()
	err := commands(alice, fmt.Sprintf("ip addr add %v/24 dev %s", addr, atHost), fmt.Sprintf("ip route add default via %s.1", network))
	s.traffic.Renew()
	return err
}

// acquaint tells both ends of the client's link of each other's hardware
// address in a new network.
func (w *world) acquaint(ctx context.Context, network, atHost, atRouter string) error {
	neighbours := []struct{ host, device, addr, peer, peerDevice string }{
		{alice, atHost, network + ".1", near, atRouter}, {near, atRouter, network + ".2", alice, atHost},
	}
	for _, n := range neighbours {
		mac, err := w.run(ctx, n.peer, "cat", "/sys/class/net/"+n.peerDevice+"/address")
		if err == nil {
			_, err = w.run(ctx, n.host, "ip", "neigh", "replace", n.addr, "lladdr", strings.TrimSpace(string(mac)), "dev", n.device, "nud", "permanent")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// restartNAT has the client's NAT lose its connections, and everything for a while.
func (s *striker) restartNAT(ctx context.Context, d time.Duration) error {
	if err := s.count(accessLink, 1); err != nil {
		return err
	}
	_, err := s.w.run(ctx, home, "conntrack", "-F")
	pause(ctx, d)
	return errors.Join(err, s.count(accessLink, -1))
}
