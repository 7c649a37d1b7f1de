// Package mptcptest provides an in-memory kernel for tests of packages that use package mptcp, and conformance
// tests that both it and the real kernel pass. Only tests import it.
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

// Fake simulates the MPTCP of one host, with the network and the servers around it. It takes no time: a join has
// its outcome before CreateSubflow returns, unless its Way is Silent. Fake is safe for concurrent use.
//
// The methods of mptcp.Kernel behave like Linux 6.18, including its special cases (docs/kernel-behaviour.md). The
// other methods simulate programs, network and servers. String returns the whole state.
type Fake struct {
	mu       sync.Mutex
	toUser   bool // new connections get the userspace path manager
	conns    map[uint32]*conn
	ways     map[netip.AddrPort]Way
	limit    int
	gone     map[netip.Addr]bool
	occupied map[netip.AddrPort]bool // local ports of programs without MPTCP
	token    uint32
	port     uint16
	events   []mptcp.Event
	losing   bool
	wake     chan struct{}

	checksumErrors uint64
}

var _ mptcp.Kernel = (*Fake)(nil)

// Way is the outcome of a join to a remote address.
type Way uint8

const (
	Works   Way = iota // it reaches the server
	Refused            // a reset comes back
	Silent             // nothing comes back
)

type conn struct {
	mptcp.Connection
	userspace bool // it has the userspace path manager
	entries   []entry
	received  uint64 // without a gap
	halfOpen  bool   // one end is closed
}

// entry is the kernel's record of a local address and its id. The port is that of CreateSubflow, mostly 0.
type entry struct {
	local netip.AddrPort
	id    uint8
}

// New returns a host without connections, whose sockets get the kernel's path manager.
func New() *Fake {
	return &Fake{
		conns: make(map[uint32]*conn),
		ways:  make(map[netip.AddrPort]Way),
		gone:  make(map[netip.Addr]bool),

		occupied: make(map[netip.AddrPort]bool),

		limit: DefaultServerLimit,
		token: 0x100,
		port:  40000,
		wake:  make(chan struct{}, 1),
	}
}

// SetUserspacePM gives new sockets the userspace or the kernel's path manager. Live connections keep theirs.
func (f *Fake) SetUserspacePM(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.toUser = on
}

// Occupy has a program without MPTCP use a local port.
func (f *Fake) Occupy(local netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.occupied[local] = true
}

// SetServerLimit sets how many additional subflows servers accept.
func (f *Fake) SetServerLimit(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limit = n
}

// SetWay sets the outcome of joins to remote from now on. By default it is Works.
func (f *Fake) SetWay(remote netip.AddrPort, w Way) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ways[remote] = w
}

// RemoveLocal removes an address from the host. There is no event, and subflows can no longer be created from it.
func (f *Fake) RemoveLocal(a netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone[a] = true
}

// Connect simulates a program on the host that connects to remote.
func (f *Fake) Connect(local netip.Addr, remote netip.AddrPort) (token uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begin(netip.AddrPortFrom(local, f.nextPort()), remote, mptcp.Event{})
}

// ConnectDenied is like Connect, to a server that forbids joins to its address.
func (f *Fake) ConnectDenied(local netip.Addr, remote netip.AddrPort) (token uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begin(netip.AddrPortFrom(local, f.nextPort()), remote, mptcp.Event{DenyJoinInitial: true})
}

// Accept simulates a client that connects to a program on the host.
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

// Shutdown simulates a program that closes its end of a connection and continues to receive.
func (f *Fake) Shutdown(token uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.conns[token]; c != nil {
		c.halfOpen = true
	}
}

// Close simulates a program that closes its connection.
func (f *Fake) Close(token uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conns[token] == nil {
		return
	}
	delete(f.conns, token)
	f.emit(mptcp.Event{Kind: mptcp.Closed, Token: token})
}

// Break simulates the end of a subflow by the network or the server, as with ECONNRESET, or with ETIMEDOUT if it is
// still connecting.
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

// Corrupt simulates data that arrives changed on a subflow: the kernel resets the subflow and counts the error,
// without an event.
func (f *Fake) Corrupt(token uint32, local netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.conns[token]; c != nil {
		c.Subflows = slices.DeleteFunc(c.Subflows, func(s mptcp.Subflow) bool { return s.Local == local })
		f.checksumErrors++
	}
}

// Receive simulates n bytes of a connection's data that arrive without a gap.
func (f *Fake) Receive(token uint32, n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.conns[token]; c != nil {
		c.received += n
	}
}

// Advertise simulates a peer that announces one of its addresses.
func (f *Fake) Advertise(token uint32, remote netip.AddrPort, id uint8) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.emit(mptcp.Event{Kind: mptcp.Announced, Token: token, Remote: remote, RemoteID: id})
}

// Withdraw simulates a peer that withdraws an address.
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

// LoseEvents drops every event that happens while during runs, and then sends EventsLost.
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
