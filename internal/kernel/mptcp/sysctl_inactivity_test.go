package mptcp_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// A connection whose subflows were all reset ends after the inactivity timeout, and not before.
func TestInactivityTimeout(t *testing.T) {
	const timeout = 3 * time.Second
	p := mptcptest.NewPair(t, "10.0.1.2", "10.0.1.1")
	p.Connect(t, "10.0.1.1")
	key, value, err := p.Kernel.InactivitySysctl(timeout)
	if _, lacks := errors.AsType[*mptcp.UnsupportedError](err); lacks {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.Client.Must(t, func() error { return netstate.SetSysctl(key, value) })
	p.Server.Output(t, "nft", fmt.Sprintf(
		"table inet hole { chain in { type filter hook input priority 0; tcp sport { %d, %d } reject with tcp reset; }; }",
		p.First.Local.Port(), p.Join.Local.Port()))
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
	began := time.Now()
	if err := p.Conn.SetReadDeadline(began.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	n, err := p.Conn.Read(make([]byte, 1))
	after := time.Since(began)
	t.Logf("the program reads %d, %v after %v", n, err, after)
	if after < timeout/2 || after > 50*time.Second {
		t.Errorf("the connection ended after %v", after)
	}
}
