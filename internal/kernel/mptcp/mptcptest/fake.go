// Package mptcptest has a kernel in memory for the tests of those who use
// package mptcp, and the conformance tests that it and the real kernel pass.
// Only tests import it.
package mptcptest

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// DefaultServerLimit is how many additional subflows a Linux server accepts by
// default.
const DefaultServerLimit = 2

// Fake is the MPTCP of one host, and the network and the servers around it.
// Nothing in it takes time: a join has its outcome before CreateSubflow
// returns, unless the way is Silent. It may be used by many goroutines.
//
// The methods of mptcp.Kernel behave as Linux 6.18 does, traps included
// (docs/kernel-behaviour.md); the others play programs, network and servers. String
// shows the whole state.
type Fake struct {
	mu     sync.Mutex
	toUser bool // new connections are userspace's
	conns  map[uint32]*conn
	ways   map[netip.AddrPort]Way
	limit  int
	gone   map[netip.Addr]bool
	token  uint32
	port   uint16
	events []mptcp.Event
	losing bool
	wake   chan struct{}

	checksumErrors uint64
}

var _ mptcp.Kernel = (*Fake)(nil)

// Way is what a join meets at a remote address.
type Way uint8

const (
	Works   Way = iota // it reaches the server
	Refused            // a reset comes back
	Silent             // nothing comes back
)

type conn struct {
	mptcp.Connection
	userspace bool // manages its paths
	entries   []entry
	received  uint64 // without a gap
	halfOpen  bool   // one end is closed
}

// entry is the kernel's memory of which local address has which id; port is
// that of CreateSubflow, mostly 0.
type entry struct {
	local netip.AddrPort
	id    uint8
}

// New is a host without connections, whose sockets get the kernel's path
// manager.
func New() *Fake {
	return &Fake{
		conns: make(map[uint32]*conn),
		ways:  make(map[netip.AddrPort]Way),
		gone:  make(map[netip.Addr]bool),
		limit: DefaultServerLimit,
		token: 0x100,
		port:  40000,
		wake:  make(chan struct{}, 1),
	}
}

// SetUserspacePM gives new sockets to userspace, or back to the kernel; live
// connections keep their path manager.
func (f *Fake) SetUserspacePM(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.toUser = on
}

// SetServerLimit sets how many additional subflows servers accept.
func (f *Fake) SetServerLimit(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limit = n
}

// SetWay sets what joins to remote meet from now on. All remotes begin as Works.
func (f *Fake) SetWay(remote netip.AddrPort, w Way) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ways[remote] = w
}

// RemoveLocal takes an address off the host: no event, and no subflow can be
// created from it any more.
func (f *Fake) RemoveLocal(a netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone[a] = true
}

// Connect plays a program on the host that connects to remote.
func (f *Fake) Connect(local netip.Addr, remote netip.AddrPort) (token uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begin(netip.AddrPortFrom(local, f.nextPort()), remote, mptcp.Event{})
}

// ConnectDenied is Connect to a server that wants no joins to its address.
func (f *Fake) ConnectDenied(local netip.Addr, remote netip.AddrPort) (token uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begin(netip.AddrPortFrom(local, f.nextPort()), remote, mptcp.Event{DenyJoinInitial: true})
}

// Accept plays a client that connects to a program on the host.
func (f *Fake) Accept(local, remote netip.AddrPort) (token uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begin(local, remote, mptcp.Event{ServerSide: true})
}

func (f *Fake) begin(local, remote netip.AddrPort, ev mptcp.Event) uint32 {
	f.token++
	c := &conn{userspace: f.toUser, Connection: mptcp.Connection{
		Token: f.token, Local: local, Remote: remote, ServerSide: ev.ServerSide,
		State: mptcp.StateEstablished, Established: true,
	}}
	c.Subflows = []mptcp.Subflow{{
		Token: c.Token, Local: local, Remote: remote, State: mptcp.StateEstablished,
		Initial: true, ServerSide: ev.ServerSide, FullyEstablished: true,
	}}
	f.conns[c.Token] = c
	ev.Token, ev.Local, ev.Remote = c.Token, local, remote
	ev.Kind = mptcp.Created
	f.emit(ev)
	ev.Kind = mptcp.Established
	f.emit(ev)
	return c.Token
}

// Shutdown plays the program that closes its end of a connection, and goes on to receive.
func (f *Fake) Shutdown(token uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.conns[token]; c != nil {
		c.halfOpen = true
	}
}

// Close plays the program that closes its connection.
func (f *Fake) Close(token uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conns[token] == nil {
		return
	}
	delete(f.conns, token)
	f.emit(mptcp.Event{Kind: mptcp.Closed, Token: token})
}

// Break plays the network or the server ending a subflow, as with ECONNRESET,
// or with ETIMEDOUT one that is still connecting.
func (f *Fake) Break(token uint32, local netip.AddrPort, err syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.conns[token]
	if c == nil {
		return
	}
	for i, s := range c.Subflows {
		if s.Local == local {
			f.end(c, i, err)
			return
		}
	}
}

// Corrupt plays data that arrives changed on a subflow: the kernel resets it, counts
// that, and sends no event.
func (f *Fake) Corrupt(token uint32, local netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.conns[token]; c != nil {
		c.Subflows = slices.DeleteFunc(c.Subflows, func(s mptcp.Subflow) bool { return s.Local == local })
		f.checksumErrors++
	}
}

// Receive plays n bytes of a connection's data that arrive without a gap.
func (f *Fake) Receive(token uint32, n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.conns[token]; c != nil {
		c.received += n
	}
}

// Advertise plays the peer announcing an address of its own.
func (f *Fake) Advertise(token uint32, remote netip.AddrPort, id uint8) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.emit(mptcp.Event{Kind: mptcp.Announced, Token: token, Remote: remote, RemoteID: id})
}

// Withdraw plays the peer withdrawing an address.
func (f *Fake) Withdraw(token uint32, id uint8) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.emit(mptcp.Event{Kind: mptcp.Removed, Token: token, RemoteID: id})
}

// SetMetrics sets the metrics of a subflow.
func (f *Fake) SetMetrics(local, remote netip.AddrPort, m mptcp.Metrics) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		for i := range c.Subflows {
			if s := &c.Subflows[i]; s.Local == local && s.Remote == remote {
				s.Metrics = m
			}
		}
	}
}

// LoseEvents drops every event that happens during during, and then tells that
// events were lost.
func (f *Fake) LoseEvents(during func()) {
	f.setLosing(true)
	during()
	f.setLosing(false)
}

func (f *Fake) setLosing(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.losing = on
	if !on {
		f.emit(mptcp.Event{Kind: mptcp.EventsLost})
	}
}

// Listen implements mptcp.Kernel.
func (f *Fake) Listen(ctx context.Context, events chan<- mptcp.Event) error {
	for {
		f.mu.Lock()
		pending := f.events
		f.events = nil
		f.mu.Unlock()
		for _, ev := range pending {
			select {
			case events <- ev:
			case <-ctx.Done():
				return nil
			}
		}
		if len(pending) > 0 {
			continue
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *Fake) emit(ev mptcp.Event) {
	if f.losing {
		return
	}
	f.events = append(f.events, ev)
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *Fake) nextPort() uint16 {
	f.port++
	return f.port
}
