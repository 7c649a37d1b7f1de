package wire_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What is sent arrives as it was sent, and answers come back with their headers, over both IP versions.
func TestConn(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		local := netip.MustParseAddr(address)
		ns := netnstest.New(t)
		var conn *wire.Conn
		ns.Must(t, func() (err error) {
			conn, err = wire.Open(local, "lo")
			return err
		})
		p := packet.Segment(netip.AddrPortFrom(local, 40001), netip.AddrPortFrom(local, 40002), packet.TCP{
			Seq: 5, Flags: packet.SYN, Window: 99, Options: []packet.Option{{Kind: 77, Data: []byte{1, 2}}},
		}, []byte("data"))
		if p.V4 != nil {
			p.V4.ID = 4242
		}
		if err := p.Seal(); err != nil {
			t.Fatal(err)
		}
		if err := conn.Send(p.Bytes()); err != nil {
			t.Fatal(err)
		}
		seen, reset := false, false
		timer := time.NewTimer(time.Minute)
		for !seen || !reset {
			select {
			case a := <-conn.Arrivals():
				got, err := packet.Parse(a.Bytes)
				if err != nil || got.TCP == nil {
					continue
				}
				// The kernel computes its own checksums on loopback only if someone needs them.
				if err := got.Verify(); err != nil && got.TCP.SrcPort == 40001 {
					t.Errorf("%s: %v", address, err)
				}
				o, _ := got.TCP.Option(77)
				seen = seen || got.TCP.SrcPort == 40001 && got.TCP.Window == 99 && len(o.Data) == 2 && string(got.Payload) == "data"
				reset = reset || got.TCP.SrcPort == 40002 && got.TCP.Flags.Has(packet.RST)
			case <-timer.C:
				t.Fatalf("%s: within a minute the packet was seen: %v, reset: %v", address, seen, reset)
			}
		}
		timer.Stop()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		for range conn.Arrivals() { // ends
		}
	}
}

func TestCannotOpen(t *testing.T) {
	ns := netnstest.New(t)
	err := ns.Do(func() error {
		_, err := wire.Open(netip.MustParseAddr("192.0.2.1"), "")
		return err
	})
	if err == nil || err.Error() != "no route to 192.0.2.1: network is unreachable" {
		t.Errorf("without a route: %v", err)
	}
	err = ns.Do(func() error {
		if err := netnstest.LimitRights(); err != nil {
			return err
		}
		_, err := wire.Open(netip.MustParseAddr("127.0.0.1"), "")
		return err
	})
	if !errors.Is(err, wire.ErrRight) {
		t.Errorf("without the right: %v", err)
	}
	// A Shared says so first, and is left as it was.
	shared := wire.NewShared("", false)
	err = ns.Do(func() error {
		if err := netnstest.LimitRights(); err != nil {
			return err
		}
		_, err := shared.Open(netip.MustParseAddr("192.0.2.1"))
		return err
	})
	if !errors.Is(err, wire.ErrRight) {
		t.Errorf("a Shared without the right: %v", err)
	}
	_, err = open(ns, shared, "192.0.2.1")
	if err == nil || err.Error() != "no route to 192.0.2.1: network is unreachable" || rawSockets(t, ns) != 0 {
		t.Errorf("a Shared without a route: %v", err)
	}
}
