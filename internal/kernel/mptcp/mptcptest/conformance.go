package mptcptest

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// Bench is a kernel with the environment for the conformance tests.
type Bench struct {
	Kernel mptcp.Kernel

	Local   netip.Addr        // an address of the host
	Other   netip.Addr        // one of the other family
	Detours [3]netip.AddrPort // lead to the server, which accepts two further subflows
	Closed  netip.AddrPort    // answers with a reset
	Silent  netip.AddrPort    // does not answer

	// UserspacePM gives new sockets the userspace path manager. back undoes it.
	UserspacePM func(t *testing.T) (back func())
	// Dial connects a program to the server and exchanges data, so that the connection is established. hangUp closes
	// it.
	Dial func(t *testing.T) (hangUp func())
}

// patience bounds the wait for an event, after which a test fails.
const patience = 10 * time.Second

// Conformance tests that a Kernel behaves as the agent expects of it.
func Conformance(t *testing.T, newBench func(t *testing.T) Bench) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *run)
	}{
		{"connection", testConnection},
		{"join", testJoin},
		{"refused", testRefused},
		{"silent", testSilent},
		{"server limit", testServerLimit},
		{"backup", testBackup},
		{"shared id", testSharedID},
		{"remove address", testRemoveAddress},
		{"remove ended", testRemoveEnded},
		{"errors", testErrors},
		{"progress", testProgress},
		{"kernel path manager", testKernelPM},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &run{T: t, Bench: newBench(t), events: make(chan mptcp.Event, 64)}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error)
			go func() { done <- r.Kernel.Listen(ctx, r.events) }()
			defer func() {
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Listen: %v", err)
				}
			}()
			r.back = r.UserspacePM(t)
			c.test(t, r)
		})
	}
}

func testProgress(_ *testing.T, r *run) {
	token, hangUp := r.dial()
	if _, err := r.Kernel.Progress(token); err != nil {
		r.Error(err)
	}
	if open, err := r.Kernel.Open(token); err != nil || !open {
		r.Errorf("open: %v, %v", open, err)
	}
	if n, err := r.Kernel.ChecksumErrors(); err != nil || n != 0 {
		r.Errorf("%d checksum errors, %v", n, err)
	}
	hangUp()
	r.next(mptcp.Closed)
	if _, err := r.Kernel.Progress(token ^ 1); !errors.Is(err, mptcp.ErrNoConnection) {
		r.Errorf("of a connection that is not there: %v", err)
	}
}

type run struct {
	*testing.T
	Bench
	back   func() // new sockets get the kernel's path manager
	events chan mptcp.Event
}

// next returns the next event, which must be of the given kind.
func (r *run) next(kind mptcp.EventKind) mptcp.Event {
	r.Helper()
	select {
	case ev := <-r.events:
		if ev.Kind != kind {
			r.Fatalf("event %v, want %v", ev, kind)
		}
		return ev
	case <-time.After(patience):
		r.Fatalf("no event %v within %v", kind, patience)
		panic("unreachable")
	}
}

func (r *run) dial() (token uint32, hangUp func()) {
	r.Helper()
	hangUp = r.Dial(r.T)
	created, established := r.next(mptcp.Created), r.next(mptcp.Established)
	if created.Token != established.Token || created.Token == 0 {
		r.Fatalf("tokens %08x and %08x of one connection", created.Token, established.Token)
	}
	if established.ServerSide || established.Local.Addr() != r.Local {
		r.Fatalf("event %v of a connection opened from %v", established, r.Local)
	}
	return established.Token, hangUp
}

func (r *run) create(token uint32, remote netip.AddrPort, id uint8, backup bool) {
	r.Helper()
	if err := r.try(token, remote, id, backup); err != nil {
		r.Fatal(err)
	}
}

func (r *run) try(token uint32, remote netip.AddrPort, id uint8, backup bool) error {
	return r.Kernel.CreateSubflow(mptcp.NewSubflow{
		Token: token, Local: netip.AddrPortFrom(r.Local, 0), LocalID: id, Remote: remote, Backup: backup,
	})
}

// join creates a subflow and waits until it is up.
func (r *run) join(token uint32, remote netip.AddrPort, id uint8) mptcp.Event {
	r.Helper()
	r.create(token, remote, id, false)
	ev := r.next(mptcp.SubflowEstablished)
	if ev.Token != token || ev.Local.Addr() != r.Local || ev.Local.Port() == 0 || ev.Remote != remote || ev.LocalID != id {
		r.Fatalf("event %v of a subflow of %08x from %v, id %d, to %v", ev, token, r.Local, id, remote)
	}
	return ev
}

// joinKept joins until the server keeps the subflow. The server counts a closed subflow until it has noticed the
// closing.
func (r *run) joinKept(token uint32, remote netip.AddrPort, id uint8) {
	r.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		up := r.join(token, remote, id)
		select {
		case ev := <-r.events:
			if ev.Kind != mptcp.SubflowClosed || ev.Local != up.Local {
				r.Fatalf("event %v after %v", ev, up)
			}
		case <-time.After(100 * time.Millisecond):
			return
		}
	}
	r.Fatalf("the server keeps no subflow to %v", remote)
}

// remotes returns the sorted remote addresses of a connection's subflows, or nil if there is no connection.
func (r *run) remotes(token uint32) []netip.AddrPort {
	r.Helper()
	conns, err := r.Kernel.Connections()
	if err != nil {
		r.Fatal(err)
	}
	for _, c := range conns {
		if c.Token == token {
			var to []netip.AddrPort
			for _, s := range c.Subflows {
				to = append(to, s.Remote)
			}
			slices.SortFunc(to, netip.AddrPort.Compare)
			return to
		}
	}
	return nil
}

// settle waits until the connection has n subflows.
func (r *run) settle(token uint32, n int) {
	r.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		got := r.remotes(token)
		if len(got) == n {
			return
		}
		if time.Now().After(end) {
			r.Fatalf("subflows to %v, want %d", got, n)
		}
	}
}

func (r *run) wantErr(err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("error %v, want %v", err, want)
	}
}

func testConnection(t *testing.T, r *run) {
	token, hangUp := r.dial()
	if got := r.remotes(token); len(got) != 1 {
		t.Errorf("subflows to %v, want the initial one", got)
	}
	hangUp()
	if ev := r.next(mptcp.Closed); ev.Token != token {
		t.Errorf("event %v, want token %08x", ev, token)
	}
	if got := r.remotes(token); got != nil {
		t.Errorf("a closed connection is listed, with subflows to %v", got)
	}
}

func testJoin(t *testing.T, r *run) {
	token, hangUp := r.dial()
	up := r.join(token, r.Detours[0], 1)
	s, err := r.Kernel.Subflow(up.Local, up.Remote)
	if err != nil {
		t.Fatal(err)
	}
	if s.Token != token || s.LocalID != 1 || s.Initial || s.ServerSide || s.State != mptcp.StateEstablished {
		t.Errorf("subflow %+v, want a join of %08x with id 1", s, token)
	}
	listed := false
	err = r.Kernel.Subflows(func(s *mptcp.Subflow) bool {
		listed = listed || s.Local == up.Local && s.Remote == up.Remote
		return !listed
	})
	if err != nil || !listed {
		t.Errorf("subflow from %v to %v is not listed (error %v)", up.Local, up.Remote, err)
	}
	if err := r.Kernel.DestroySubflow(token, up.Local, up.Remote); err != nil {
		t.Fatal(err)
	}
	if down := r.next(mptcp.SubflowClosed); down.Local != up.Local || down.Remote != up.Remote || down.Err != 0 {
		t.Errorf("event %v after %v was destroyed", down, up)
	}
	r.settle(token, 1)
	// A connection with several subflows also ends with a single event.
	r.join(token, r.Detours[1], 1)
	hangUp()
	r.next(mptcp.Closed)
}

func testRefused(t *testing.T, r *run) {
	token, _ := r.dial()
	r.create(token, r.Closed, 1, false)
	if ev := r.next(mptcp.SubflowClosed); ev.Err != syscall.ECONNREFUSED || ev.Remote != r.Closed {
		t.Errorf("event %v, want %v to have refused", ev, r.Closed)
	}
	r.join(token, r.Detours[0], 1)
}

func testSilent(t *testing.T, r *run) {
	token, _ := r.dial()
	r.create(token, r.Silent, 1, false)
	var local netip.AddrPort
	err := r.Kernel.Subflows(func(s *mptcp.Subflow) bool {
		if s.Remote == r.Silent && s.State == mptcp.StateSynSent {
			local = s.Local
		}
		return true
	})
	if err != nil || !local.IsValid() {
		t.Fatalf("no connecting subflow to %v is listed (error %v)", r.Silent, err)
	}
	if err := r.Kernel.DestroySubflow(token, local, r.Silent); err != nil {
		t.Fatal(err)
	}
	if ev := r.next(mptcp.SubflowClosed); ev.Local != local || ev.Remote.Addr() != r.Silent.Addr() {
		t.Errorf("event %v, want the subflow from %v", ev, local)
	}
	r.settle(token, 1)
}

func testServerLimit(t *testing.T, r *run) {
	token, _ := r.dial()
	r.join(token, r.Detours[0], 1)
	second := r.join(token, r.Detours[1], 1)
	third := r.join(token, r.Detours[2], 1)
	if ev := r.next(mptcp.SubflowClosed); ev.Local != third.Local {
		t.Errorf("event %v, want the subflow in excess, %v", ev, third)
	}
	r.settle(token, 3)
	if err := r.Kernel.DestroySubflow(token, second.Local, second.Remote); err != nil {
		t.Fatal(err)
	}
	r.next(mptcp.SubflowClosed)
	r.joinKept(token, r.Detours[2], 1)
	r.settle(token, 3)
}

func testBackup(t *testing.T, r *run) {
	token, _ := r.dial()
	r.create(token, r.Detours[0], 1, true)
	up := r.next(mptcp.SubflowEstablished)
	for _, backup := range []bool{true, false, true} {
		s, err := r.Kernel.Subflow(up.Local, up.Remote)
		if err != nil {
			t.Fatal(err)
		}
		if s.BackupLocal != backup {
			t.Errorf("backup is %v, want %v", s.BackupLocal, backup)
		}
		if err := r.Kernel.SetBackup(token, up.Local, up.Remote, !backup); err != nil {
			t.Fatal(err)
		}
	}
}

// All subflows of an address have the same id, which is forgotten as soon as one of them is destroyed.
func testSharedID(t *testing.T, r *run) {
	token, _ := r.dial()
	one := r.join(token, r.Detours[0], 1)
	r.join(token, r.Detours[1], 1)
	r.wantErr(r.try(token, r.Detours[2], 2, false), mptcp.ErrAddressID)
	if err := r.Kernel.DestroySubflow(token, one.Local, one.Remote); err != nil {
		t.Fatal(err)
	}
	r.next(mptcp.SubflowClosed)
	r.wantErr(r.Kernel.RemoveAddress(token, 1), mptcp.ErrNoAddress)
	if err := r.Kernel.Announce(token, netip.AddrPortFrom(r.Local, 0), 1); err != nil {
		t.Fatal(err)
	}
	if err := r.Kernel.RemoveAddress(token, 1); err != nil {
		t.Error(err)
	}
	r.next(mptcp.SubflowClosed)
	r.settle(token, 1)
}

func testRemoveAddress(t *testing.T, r *run) {
	token, _ := r.dial()
	r.join(token, r.Detours[0], 1)
	r.join(token, r.Detours[1], 1)
	if err := r.Kernel.RemoveAddress(token, 1); err != nil {
		t.Fatal(err)
	}
	r.next(mptcp.SubflowClosed)
	r.next(mptcp.SubflowClosed)
	r.settle(token, 1)
	// The server has room for two again, and the initial subflow can go.
	r.joinKept(token, r.Detours[0], 1)
	r.joinKept(token, r.Detours[1], 1)
	if err := r.Kernel.RemoveAddress(token, 0); err != nil {
		t.Fatal(err)
	}
	if ev := r.next(mptcp.SubflowClosed); ev.LocalID != 0 {
		t.Errorf("event %v, want the initial subflow", ev)
	}
	r.settle(token, 2)
}

// The peer can be told of the end of an initial subflow that has ended.
func testRemoveEnded(t *testing.T, r *run) {
	token, _ := r.dial()
	initial, err := r.Kernel.Connections()
	if err != nil || len(initial) != 1 || len(initial[0].Subflows) != 1 {
		t.Fatalf("connections %v, %v", initial, err)
	}
	r.join(token, r.Detours[0], 1)
	first := initial[0].Subflows[0]
	if err := r.Kernel.DestroySubflow(token, first.Local, first.Remote); err != nil {
		t.Fatal(err)
	}
	r.next(mptcp.SubflowClosed)
	for range 2 {
		if err := r.Kernel.RemoveAddress(token, 0); err != nil {
			t.Error(err)
		}
	}
	r.settle(token, 1)
}

func testErrors(t *testing.T, r *run) {
	token, _ := r.dial()
	const stranger = 1
	local := netip.AddrPortFrom(r.Local, 9)
	k := r.Kernel
	r.wantErr(r.try(stranger, r.Detours[0], 1, false), mptcp.ErrNoConnection)
	r.wantErr(k.DestroySubflow(stranger, local, r.Detours[0]), mptcp.ErrNoConnection)
	r.wantErr(k.SetBackup(stranger, local, r.Detours[0], true), mptcp.ErrNoConnection)
	r.wantErr(k.RemoveAddress(stranger, 1), mptcp.ErrNoConnection)
	r.wantErr(k.Announce(stranger, local, 1), mptcp.ErrNoConnection)

	r.wantErr(k.DestroySubflow(token, local, r.Detours[0]), mptcp.ErrNoSubflow)
	r.wantErr(k.SetBackup(token, local, r.Detours[0], true), mptcp.ErrNoSubflow)
	r.wantErr(k.RemoveAddress(token, 7), mptcp.ErrNoAddress)
	_, err := k.Subflow(local, r.Detours[0])
	r.wantErr(err, mptcp.ErrNoSubflow)

	mixed := mptcp.NewSubflow{Token: token, Local: netip.AddrPortFrom(r.Other, 0), LocalID: 1, Remote: r.Detours[0]}
	r.wantErr(k.CreateSubflow(mixed), mptcp.ErrFamily)

	taken := mptcp.NewSubflow{Token: token, Local: netip.AddrPortFrom(r.Local, 5000), LocalID: 1, Remote: r.Detours[0]}
	if err := k.CreateSubflow(taken); err != nil {
		t.Fatal(err)
	}
	r.next(mptcp.SubflowEstablished)
	r.wantErr(k.CreateSubflow(taken), syscall.EADDRINUSE)
}

func testKernelPM(_ *testing.T, r *run) {
	before, _ := r.dial()
	r.back()
	after, _ := r.dial()
	r.join(before, r.Detours[0], 1) // a live connection keeps its path manager
	r.wantErr(r.try(after, r.Detours[0], 1, false), mptcp.ErrKernelPM)
}
