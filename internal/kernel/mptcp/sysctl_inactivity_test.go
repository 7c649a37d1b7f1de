package mptcp_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// withoutSubflows returns a connection that has just lost its subflows. The server resets further ones.
func withoutSubflows(t *testing.T, inactivity time.Duration) *mptcptest.Pair {
	t.Helper()
	p := mptcptest.NewPair(t, "10.0.1.2", "10.0.1.1")
	p.Connect(t, "10.0.1.1")
	key, value, err := p.Kernel.InactivitySysctl(inactivity)
	if _, lacks := errors.AsType[*mptcp.UnsupportedError](err); lacks {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.Client.Must(t, func() error { return netstate.SetSysctl(key, value) })
	if got, err := p.Kernel.Inactivity(); err != nil || got != inactivity {
		t.Errorf("the timeout is %v, %v, want %v", got, err, inactivity)
	}
	p.Server.Output(t, "nft", "table inet hole { chain in { type filter hook input priority 0; meta l4proto tcp reject with tcp reset; }; }")
	for _, of := range []mptcptest.Ends{p.First, p.Join} {
		p.Nudge(t, of)
	}
	for _, of := range []mptcptest.Ends{p.First, p.Join} {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if _, err := p.Kernel.Subflow(of.Local, of.Remote); errors.Is(err, mptcp.ErrNoSubflow) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v lives on", of)
			}
		}
	}
	return p
}

// A connection whose subflows were all reset ends after the inactivity timeout, and not before.
func TestInactivityTimeout(t *testing.T) {
	const timeout = 3 * time.Second
	p := withoutSubflows(t, timeout)
	if after := untilEnd(t, p); after < timeout/2 || after > 50*time.Second {
		t.Errorf("the connection ended after %v", after)
	}
}

// The timeout begins anew after each attempt at a subflow that fails.
func TestAttemptsExtendInactivity(t *testing.T) {
	const timeout, every = 3 * time.Second, time.Second
	p := withoutSubflows(t, timeout)
	began, last := time.Now(), time.Now()
	for id := uint8(10); time.Since(began) < timeout+2*every; id++ {
		if time.Since(last) > timeout-every/2 {
			t.Skip("this machine is too busy to attempt often enough")
		}
		last = time.Now()
		err := p.Kernel.CreateSubflow(mptcp.NewSubflow{
			Token: p.Token, Local: netip.AddrPortFrom(p.First.Local.Addr(), 41000+uint16(id)), LocalID: id, Remote: p.First.Remote,
		})
		if err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		time.Sleep(every)
	}
	if after := untilEnd(t, p); after > 50*time.Second {
		t.Errorf("after the last attempt the connection ended after %v", after)
	}
}

// untilEnd returns how long it takes from now until the connection ends.
func untilEnd(t *testing.T, p *mptcptest.Pair) time.Duration {
	t.Helper()
	began := time.Now()
	if err := p.Conn.SetReadDeadline(began.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	n, err := p.Conn.Read(make([]byte, 1))
	after := time.Since(began)
	t.Logf("the program reads %d, %v after %v", n, err, after)
	return after
}
