package client

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
)

// idleKernel has nothing to tell, and notes when it was asked.
type idleKernel struct {
	mptcp.Kernel
	connections []mptcp.Connection
	sampled     []time.Time
}

// homeRouter has two addresses. The second is one that tunnels could have.
type homeRouter struct{ router }

var homeAddress, officeAddress = netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("10.200.0.1")

func (homeRouter) Own() ([]netstate.Address, error) {
	return []netstate.Address{{Addr: homeAddress}, {Addr: officeAddress}}, nil
}
func (homeRouter) SourceFor(netip.Addr) (netstate.Address, error) {
	return netstate.Address{Addr: homeAddress}, nil
}
func (homeRouter) Network() ([]netip.Addr, error)            { return nil, nil }
func (homeRouter) Interfaces() ([]netstate.Interface, error) { return nil, nil }
func (homeRouter) Behind([]string) ([]netip.Prefix, error)   { return nil, nil }

func (k *idleKernel) Connections() ([]mptcp.Connection, error) { return k.connections, nil }
func (k *idleKernel) ChecksumErrors() (uint64, error)          { return 0, nil }
func (k *idleKernel) Subflows(func(*mptcp.Subflow) bool) error {
	k.sampled = append(k.sampled, time.Now())
	return nil
}

// looping returns a Client whose loop needs nothing but a kernel.
func looping(kernel mptcp.Kernel, config path.Config) *Client {
	log := slog.New(slog.DiscardHandler)
	return &Client{
		log: log, host: &host{kernel: kernel, pathManager: func() error { return nil }, routes: homeRouter{}, log: log}, inbox: newInbox(0),
		tunnels: emptyTunnels(log), sampler: sampler{kernel: kernel}, manager: path.New(config), book: detour.New(nil),
	}
}

// The loop's clock is that of the moment when something happens, not of the one
// when it began to wait: an idle host is sampled as often as a busy one.
func TestLoopKeepsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &idleKernel{}
		c := looping(kernel, path.Config{Policy: path.DetourPolicy{Subflows: 2}})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.loop(ctx) }()

		time.Sleep(10*sampleEvery + sampleEvery/2)
		asked := time.Now()
		c.inbox.calls <- func(now time.Time) {
			if late := asked.Sub(now); late != 0 {
				t.Errorf("the loop's clock is %v late", late)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := len(kernel.sampled); n != 10 {
			t.Errorf("subflows were sampled %d times in 10 rounds: %v", n, kernel.sampled)
		}
	})
}

// A connection that the kernel does not have any more is forgotten, although no event told of its end.
func TestConnectionThatEndedWithoutEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &forgottenKernel{}
		c := looping(kernel, path.Config{Policy: path.DetourPolicy{Subflows: 2}})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.loop(ctx) }()
		c.inbox.calls <- func(now time.Time) {
			local, remote := netip.AddrPortFrom(homeAddress, 5000), netip.MustParseAddrPort("192.0.2.2:80")
			c.handle(ctx, now, path.ConnEstablished{Token: 7, Local: local, Remote: remote})
		}
		time.Sleep(10 * time.Second)
		c.inbox.calls <- func(now time.Time) {
			if conns := c.manager.Snapshot(now).Conns; len(conns) > 0 {
				t.Errorf("it still has %+v", conns)
			}
			if list := c.ended.list(); len(list) != 1 || list[0].Token != tokenText(7) {
				t.Errorf("ended: %+v", list)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// forgottenKernel is an idleKernel that has no connections.
type forgottenKernel struct{ idleKernel }

func (k *forgottenKernel) Open(uint32) (bool, error) { return false, mptcp.ErrNoConnection }

func (k *forgottenKernel) Subflow(netip.AddrPort, netip.AddrPort) (mptcp.Subflow, error) {
	return mptcp.Subflow{}, mptcp.ErrNoSubflow
}

// A connection in the tunnel of an agent before is known as such, because this host has its address no longer. So no subflow
// of it starts outside of tunnels.
func TestConnectionOfAnEarlierAgentsTunnel(t *testing.T) {
	for local, outside := range map[string]bool{"10.192.0.2:5000": false, "198.51.100.1:5000": true, "10.200.0.1:5000": true} {
		synctest.Test(t, func(t *testing.T) {
			from, converter := netip.MustParseAddrPort(local), netip.MustParseAddrPort("192.0.2.2:5124")
			kernel := &joiningKernel{}
			for token := range uint32(2) {
				from = netip.AddrPortFrom(from.Addr(), from.Port()+1)
				kernel.connections = append(kernel.connections, mptcp.Connection{
					Token: token, Local: from, Remote: converter, Established: true,
					Subflows: []mptcp.Subflow{{Local: from, Remote: converter, State: mptcp.StateEstablished}},
				})
			}
			c := looping(kernel, path.Config{Policy: path.DetourPolicy{Subflows: 2}, Tunnels: []netip.Prefix{netip.MustParsePrefix("10.192.0.0/11")}})
			c.host.ports.First, c.host.ports.Last = 40000, 50000
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- c.loop(ctx) }()
			c.inbox.calls <- func(now time.Time) {
				c.handle(ctx, now, path.DetourOffered{Detour: path.Detour{ID: "m", Kind: path.Mapped, Waypoint: "carol", Remote: netip.MustParseAddrPort("192.0.2.3:4000"), Server: converter}})
			}
			time.Sleep(10 * time.Second)
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if len(kernel.joins) > 0 != outside {
				t.Errorf("from %s it got the subflows %+v", local, kernel.joins)
			}
		})
	}
}

// joiningKernel is an idleKernel that notes which subflows it was asked for.
type joiningKernel struct {
	idleKernel
	joins []mptcp.NewSubflow
}

func (k *joiningKernel) CreateSubflow(s mptcp.NewSubflow) error {
	k.joins = append(k.joins, s)
	return nil
}

func (k *joiningKernel) Open(uint32) (bool, error) { return true, nil }

func (k *joiningKernel) RemoveAddress(uint32, uint8) error { return nil }

func (k *joiningKernel) DestroySubflow(uint32, netip.AddrPort, netip.AddrPort) error { return nil }

func (k *joiningKernel) Subflow(local, remote netip.AddrPort) (mptcp.Subflow, error) {
	return mptcp.Subflow{Local: local, Remote: remote, State: mptcp.StateEstablished}, nil
}
