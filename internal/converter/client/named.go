package client

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine"
)

// named is a connection whose program names the server.
type named struct {
	client  *Client
	peer    netip.Addr // the program's address
	attempt *attempt
	reply   func(syscall.Errno) []byte // returns what tells the program how connecting ended
}

// connect returns the Step that connects to a host. used is the length of the program's request.
func (n *named) connect(used int, host string, port uint16) engine.Step {
	if addr, err := netip.ParseAddr(host); err == nil {
		return n.dial(used, n.client.begin, []netip.Addr{addr.Unmap()}, port)
	}
	select {
	case n.client.resolving <- struct{}{}:
	default:
		return n.fail(syscall.EAGAIN)
	}
	return engine.Step{Used: used, Later: func(next func(engine.Step)) {
		go func() {
			step := n.resolve(host, port)
			<-n.client.resolving
			next(step)
		}()
	}}
}

func (n *named) resolve(host string, port uint16) engine.Step {
	ctx, cancel := context.WithTimeout(context.Background(), resolveFor)
	defer cancel()
	addrs, err := n.client.config.Resolve(ctx, host)
	if err != nil || len(addrs) == 0 {
		return n.fail(syscall.EHOSTUNREACH)
	}
	begin := beginner(n.client.begin)
	if n.client.ExcludesName(host) {
		begin = n.client.beginDirectly
	}
	return n.dial(0, begin, addrs, port)
}

// beginner is Client.begin or Client.beginDirectly.
type beginner func(who choice.Who, servers ...netip.AddrPort) (*attempt, *engine.Dial)

// who returns the client: this host, or another one.
func (n *named) who() choice.Who {
	if n.peer.Unmap().IsLoopback() {
		return choice.Who{}
	}
	return choice.Who{Host: n.peer.Unmap()}
}

// dial returns the Step that connects to the server's addresses that the program may reach. used is the length of the
// program's request.
func (n *named) dial(used int, begin beginner, addrs []netip.Addr, port uint16) engine.Step {
	if !n.peer.IsLoopback() {
		addrs = forOthers(n.peer, addrs, ownAddrs())
	}
	if len(addrs) == 0 {
		return n.fail(syscall.EACCES)
	}
	return engine.Step{Used: used, Dial: n.begin(begin, addrs, port)}
}

// forOthers returns the addresses that a program may reach through the proxy. own are this host's addresses. A program
// on another host, for which the proxy listens in the LAN, may reach neither this host nor its link, because it must
// not reach services on the loopback interface or behind a firewall.
func forOthers(peer netip.Addr, addrs, own []netip.Addr) []netip.Addr {
	if slices.Contains(own, plain(peer)) {
		return addrs
	}
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
		a = plain(a)
		return a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() || slices.Contains(own, a)
	})
}

// ownAddrs returns the addresses of this host, or none if they cannot be read.
func ownAddrs() (own []netip.Addr) {
	list, _ := net.InterfaceAddrs()
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, plain(p.Addr()))
		}
	}
	return own
}

// plain returns an address in the form in which addresses are compared.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// begin returns the first way to the addresses.
func (n *named) begin(begin beginner, addrs []netip.Addr, port uint16) (first *engine.Dial) {
	var servers []netip.AddrPort
	for _, addr := range addrs {
		servers = append(servers, netip.AddrPortFrom(addr.Unmap(), port))
	}
	n.attempt, first = begin(n.who(), servers...)
	return first
}

func (n *named) fail(errno syscall.Errno) engine.Step {
	return engine.Step{Reply: n.reply(errno), Close: true}
}

// Dialled implements engine.Opening.
func (n *named) Dialled(r engine.Result) engine.Step {
	next, errno := n.attempt.dialled(r)
	if next != nil {
		return engine.Step{Dial: next}
	}
	return engine.Step{Reply: n.reply(errno), Close: errno != 0}
}

// Spoke implements engine.Witness.
func (n *named) Spoke(spoke bool) { n.attempt.spoke(spoke) }
