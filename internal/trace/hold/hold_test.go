package hold_test

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace/hold"
	"github.com/detour-collective/dcol/internal/trace/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The kernel resets a connection that it does not know, unless it is held. A reset that a program sends passes.
func TestHold(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		t.Run(address, func(t *testing.T) { testHold(t, netip.MustParseAddr(address)) })
	}
}

func testHold(t *testing.T, local netip.Addr) {
	ns := netnstest.New(t)
	var listener net.Listener
	var conn *wire.Conn
	var table *hold.Hold
	const held, free = 40001, 40002
	ns.Must(t, func() (err error) {
		if listener, err = net.Listen("tcp", netip.AddrPortFrom(local, 0).String()); err != nil {
			return err
		}
		if conn, err = wire.Open(local, ""); err != nil {
			return err
		}
		if table, err = hold.New(); err != nil {
			return err
		}
		return table.Add(hold.Flow{Source: held, Destination: netip.MustParseAddrPort(listener.Addr().String())})
	})
	defer listener.Close()
	defer conn.Close()
	ns.Must(t, func() error { // a second one of the same process
		another, err := hold.New()
		if err != nil {
			return err
		}
		return another.Close()
	})
	to := netip.MustParseAddrPort(listener.Addr().String())
	if conn.Source() != local {
		t.Errorf("the source is %v", conn.Source())
	}
	send := func(port uint16, flags packet.Flags, seq uint32) {
		t.Helper()
		p := packet.Segment(netip.AddrPortFrom(local, port), to, packet.TCP{Seq: seq, Flags: flags, Window: 1000}, nil)
		if p.V4 != nil {
			p.V4.ID = 77
		}
		if err := p.Seal(); err != nil {
			t.Fatal(err)
		}
		if err := conn.Send(p.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	// resetOf waits for a reset from a port, and fails if one comes from another before.
	resetOf := func(port uint16) {
		t.Helper()
		timer := time.NewTimer(time.Minute)
		defer timer.Stop()
		for {
			select {
			case a := <-conn.Arrivals():
				p, err := packet.Parse(a.Bytes)
				if err != nil || p.TCP == nil || !p.TCP.Flags.Has(packet.RST) {
					continue
				}
				if p.TCP.SrcPort != port {
					t.Fatalf("port %d was reset", p.TCP.SrcPort)
				}
				return
			case <-timer.C:
				t.Fatalf("no reset of port %d within a minute", port)
			}
		}
	}
	send(held, packet.SYN, 1)
	send(free, packet.SYN, 1)
	resetOf(free) // the other port's would have come before
	send(held, packet.RST, 2)
	resetOf(held) // this one is the program's own
	if _, err := exec.LookPath("nft"); err == nil {
		if out := ns.Output(t, "nft", "list", "tables"); !strings.Contains(out, "dcol_trace_") {
			t.Errorf("there is no table: %s", out)
		}
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	// Without the table, the kernel resets again.
	send(held, packet.SYN, 100)
	resetOf(held)
}
