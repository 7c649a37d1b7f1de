package client

import (
	"context"
	"net/netip"
	"syscall"

	"github.com/detour-collective/dcol/internal/converter/engine"
)

// named is a connection whose program names the server.
type named struct {
	client  *Client
	attempt *attempt
	reply   func(syscall.Errno) []byte // tells the program how connecting ended
}

// connect goes on with connecting to a host, after used bytes.
func (n *named) connect(used int, host string, port uint16) engine.Step {
	if addr, err := netip.ParseAddr(host); err == nil {
		return engine.Step{Used: used, Dial: n.begin(n.client.begin, []netip.Addr{addr}, port)}
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
	begin := n.client.begin
	if n.client.ExcludesName(host) {
		begin = n.client.beginDirectly
	}
	return engine.Step{Dial: n.begin(begin, addrs, port)}
}

// begin returns the first way to the addresses.
func (n *named) begin(begin func(...netip.AddrPort) (*attempt, *engine.Dial), addrs []netip.Addr, port uint16) (first *engine.Dial) {
	var servers []netip.AddrPort
	for _, addr := range addrs {
		servers = append(servers, netip.AddrPortFrom(addr.Unmap(), port))
	}
	n.attempt, first = begin(servers...)
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
