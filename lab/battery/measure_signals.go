package battery

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
)

// A test of signals has so many connections, and waits so long for what is to follow.
const (
	signalConnections = 12
	signalPatience    = 3 * time.Second
)

// signalled opens connections whose first path loses packets, and counts those that learn of an address and of its end.
func signalled(ctx context.Context, a *attempt) (v values, err error) {
	if err := a.setUp(ctx, manage{}); err != nil {
		return nil, err
	}
	v = values{}
	err = a.listening(ctx, func(l net.Listener) error {
		flows, err := a.open(ctx, l)
		defer func() { abandonAll(flows) }()
		if err != nil {
			return err
		}
		withSecond := func() (n float64) {
			for _, f := range flows {
				for _, s := range f.look(a.bed) {
					if s.path == 2 {
						n++
					}
				}
			}
			return n
		}
		joined := withSecond()
		v["joined"] = 100 * joined / signalConnections
		sent, err := a.counter(ctx, serverHost, "MPTcpExtAddAddrTx")
		if err != nil {
			return err
		}
		v["announced"] = sent / signalConnections
		before, err := a.counter(ctx, serverHost, "MPTcpExtRmAddrTx")
		if err != nil || joined == 0 {
			return err
		}
		if err := a.lose(ctx, serverHost, serverUplink(2), a.serverAddr(2)); err != nil {
			return err
		}
		if err := crew.Pause(ctx, signalPatience); err != nil {
			return err
		}
		a.measured()
		v["left"] = 100 * (joined - withSecond()) / joined
		after, err := a.counter(ctx, serverHost, "MPTcpExtRmAddrTx")
		v["removals"] = (after - before) / joined
		return err
	})
	return v, err
}

// withdrawn opens connections over both uplinks of the client. The first uplink loses packets to the server. Then the second
// uplink dies, and its address is removed. withdrawn counts the connections whose server learns that.
func withdrawn(ctx context.Context, a *attempt) (v values, err error) {
	if err := a.setUp(ctx, manage{}); err != nil {
		return nil, err
	}
	v = values{}
	if err := a.loseUp(0); err != nil { // else some connections would never begin
		return nil, err
	}
	err = a.listening(ctx, func(l net.Listener) error {
		flows, err := a.open(ctx, l)
		defer func() { abandonAll(flows) }()
		if err != nil {
			return err
		}
		if err := a.loseUp(a.shape.lines[0].lossUp); err != nil {
			return err
		}
		withSecond := func() (list []*flow) {
			for _, f := range flows {
				if slices.Contains(f.onServer(a.bed), 2) {
					list = append(list, f)
				}
			}
			return list
		}
		joined := withSecond()
		v["joined"] = 100 * float64(len(joined)) / float64(len(flows))
		before, err := a.counter(ctx, clientHost, "MPTcpExtRmAddrTx")
		if err != nil || len(joined) == 0 {
			return err
		}
		if err := a.lose(ctx, clientHost, clientUplink(2), a.clientAddr(2)); err != nil {
			return err
		}
		if err := crew.Pause(ctx, signalPatience); err != nil {
			return err
		}
		a.measured()
		left := len(joined) - len(withSecond())
		v["left"] = 100 * float64(left) / float64(len(joined))
		after, err := a.counter(ctx, clientHost, "MPTcpExtRmAddrTx")
		v["removals"] = (after - before) / float64(len(joined))
		return err
	})
	return v, err
}

// loseUp has the first path lose a share of the packets to the server.
func (b *bed) loseUp(share float64) error {
	l := b.shape.lines[0]
	l.lossUp = share
	up, down := l.params()
	return b.SetLink(pathLink(1), up, down)
}

// lose has the second path die, and takes the address of its uplink from a host. Nothing but REMOVE_ADDR on the first path
// reaches the other host then: resets on the second are lost. The kernel's path manager does not notice, and is asked to
// withdraw the address.
func (a *attempt) lose(ctx context.Context, host, uplink string, address netip.Addr) error {
	if err := a.LinkDown(pathLink(2), true); err != nil {
		return err
	}
	if a.impl == kernelPM {
		if err := a.withdraw(ctx, host, address); err != nil {
			return err
		}
	}
	_, err := a.Run(ctx, host, "ip", "addr", "flush", "dev", a.Host(host).Interface(uplink), "to", address.String())
	return err
}

// open opens the connections of a test of signals, and gives them time to join. It also returns them after an error.
func (a *attempt) open(ctx context.Context, l net.Listener) (flows []*flow, err error) {
	for range signalConnections {
		f, err := a.start(ctx, l, flowPlan{multipath: true, from: 1, to: 1, down: true, rate: 0.1})
		if err != nil {
			return flows, err
		}
		flows = append(flows, f)
	}
	return flows, crew.Pause(ctx, signalPatience)
}

// withdraw has the kernel's path manager of a host withdraw an address.
func (b *bed) withdraw(ctx context.Context, host string, address netip.Addr) error {
	out, err := b.Run(ctx, host, "ip", "mptcp", "endpoint", "show")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		for i, word := range fields {
			if fields[0] == address.String() && word == "id" && i+1 < len(fields) {
				_, err := b.Run(ctx, host, "ip", "mptcp", "endpoint", "delete", "id", fields[i+1])
				return err
			}
		}
	}
	return fmt.Errorf("%s is no endpoint of the %s's", address, host)
}

// counter reads one of a host's MPTCP counters.
func (b *bed) counter(ctx context.Context, host, name string) (value float64, err error) {
	out, err := b.Run(ctx, host, "nstat", "-asz", name)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && fields[0] == name {
			_, err := fmt.Sscan(fields[1], &value)
			return value, err
		}
	}
	return 0, fmt.Errorf("nstat has no %s", name)
}
