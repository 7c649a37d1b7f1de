package wire_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace/probe"
	"github.com/detour-collective/dcol/internal/trace/wire"
)

// rawSockets returns the number of raw sockets of a namespace.
func rawSockets(t *testing.T, ns *netnstest.NS) (n int) {
	t.Helper()
	ns.Must(t, func() error {
		for _, file := range []string{"/proc/thread-self/net/raw", "/proc/thread-self/net/raw6"} {
			table, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			n += bytes.Count(table, []byte("\n")) - 1 // without the heading
		}
		return nil
	})
	return n
}

// Many destinations have as many sockets as one. Each hears what it answers, and the ICMP errors about what was sent to it.
func TestShared(t *testing.T) {
	ns := netnstest.New(t)
	shared := wire.NewShared("lo", true)
	destinations := []string{"::1", "127.0.0.2", "127.0.0.3", "127.0.9.4", "127.9.0.5"}
	var flows []*wire.Flow
	for _, address := range destinations {
		ns.Must(t, func() error {
			f, err := shared.Open(netip.MustParseAddr(address))
			flows = append(flows, f)
			return err
		})
	}
	const each = 4 // one sends, and one hears each of ICMP, TCP and UDP
	if got := rawSockets(t, ns); got != 2*each {
		t.Errorf("%d raw sockets, not %d of each IP version", got, each)
	}
	if _, err := open(ns, shared, "127.0.0.2"); err == nil || err.Error() != "127.0.0.2 is being traced" {
		t.Errorf("the same destination twice: %v", err)
	}
	for i, f := range flows {
		for _, text := range []string{"tcp{src=%d, dst=9}", "udp{src=%d, dst=9} / raw('who is there?')"} {
			layers, err := probe.Parse(fmt.Sprintf(text, 40000+i))
			if err != nil {
				t.Fatal(err)
			}
			p, err := layers.Build(probe.Env{Source: f.Source(), Destination: netip.MustParseAddr(destinations[i]), Random: rand.New(rand.NewPCG(1, 1))})
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Send(p.Packet.Bytes()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, f := range flows {
		answered(t, f, uint16(40000+i))
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		for range f.Arrivals() { // ends
		}
	}
	if err := flows[0].Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
	if got := rawSockets(t, ns); got != 0 {
		t.Errorf("%d raw sockets are left", got)
	}
	if shared.Lost() != 0 {
		t.Errorf("%d packets were lost", shared.Lost())
	}
	f, err := open(ns, shared, "127.0.0.1") // again
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func open(ns *netnstest.NS, shared *wire.Shared, address string) (f *wire.Flow, err error) {
	err = ns.Do(func() error {
		f, err = shared.Open(netip.MustParseAddr(address))
		return err
	})
	return f, err
}

// answered waits for the reset of a SYN and the ICMP error about a datagram, both from a port. Nothing else about
// another port may come.
func answered(t *testing.T, f *wire.Flow, port uint16) {
	t.Helper()
	end := time.After(time.Minute)
	for reset, refused := false, false; !reset || !refused; {
		select {
		case a := <-f.Arrivals():
			p, err := packet.Parse(a.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if p.Dst() != f.Source() {
				t.Errorf("a packet to %v, not %v", p.Dst(), f.Source())
			}
			own := p.From().Port() // of what this host sent to ::1, which comes back
			if q, err := p.Quote(); err == nil {
				quoted, err := packet.ParseQuote(q.Bytes)
				if err != nil || quoted.UDP == nil {
					t.Fatalf("a quote of %v: %v", quoted, err)
				}
				own, refused = quoted.UDP.SrcPort, true
			} else if p.TCP != nil && p.TCP.Flags.Has(packet.RST) {
				own, reset = p.TCP.DstPort, true
			}
			if own != port {
				t.Errorf("to %v: a packet of port %d, not %d", f.Source(), own, port)
			}
		case <-end:
			t.Fatalf("port %d: within a minute reset %v, refused %v", port, reset, refused)
		}
	}
}

// A burst that nobody reads is counted as lost, beyond what a destination keeps.
func TestSharedLost(t *testing.T) {
	ns := netnstest.New(t)
	shared := wire.NewShared("lo", false)
	f, err := open(ns, shared, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	const kept = 128
	syn := packet.Segment(netip.MustParseAddrPort("127.0.0.1:40000"), netip.MustParseAddrPort("127.0.0.1:9"), packet.TCP{Flags: packet.SYN}, nil)
	if err := syn.Seal(); err != nil {
		t.Fatal(err)
	}
	const sent = 2 * kept // each comes back, and is reset
	for range sent {
		if err := f.Send(syn.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(time.Minute); shared.Lost() < 2*sent-kept && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if shared.Lost() != 2*sent-kept {
		t.Errorf("%d packets were lost of %d, %d are kept", shared.Lost(), 2*sent, kept)
	}
}
