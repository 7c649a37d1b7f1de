package resets

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
)

var start = time.Unix(1000, 0)

// rst returns an RST of the converter to a client, as the kernel sends it. Its checksum is not set.
func rst(t *testing.T, clientPort uint16, seq uint32, options ...packet.Option) []byte {
	t.Helper()
	from := netip.MustParseAddrPort("192.0.2.1:5124")
	p := packet.Segment(from, netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), clientPort),
		packet.TCP{Seq: seq, Flags: packet.RST | packet.ACK, Options: options}, nil)
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	p.TCP.Checksum = 0
	return p.Bytes()
}

var fastClose = packet.FastClose{Receiver: 7}.Option()

// wantRST fails the test unless p is an RST to a client's port with a sequence number, with MP_FASTCLOSE and correct
// checksums.
func wantRST(t *testing.T, p *packet.Packet, clientPort uint16, seq uint32) {
	t.Helper()
	if p == nil {
		t.Fatal("nothing is sent")
	}
	sent, err := packet.Parse(p.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if err := sent.Verify(); err != nil {
		t.Error(err)
	}
	if sent.TCP.DstPort != clientPort || sent.TCP.Seq != seq || len(sent.TCP.Options) == 0 || !isFastClose(sent.TCP.Options[0]) {
		t.Errorf("sent %+v", sent.TCP)
	}
}

// An RST is sent again several times within two seconds, and forgotten after a minute.
func TestCopies(t *testing.T) {
	r := newRepeats()
	if got := r.heard(rst(t, 1, 100, fastClose), start); got != nil {
		t.Errorf("%+v is sent at once", got)
	}
	for _, after := range repeatAfter {
		if early := r.due(start.Add(after - 1)); len(early) > 0 {
			t.Errorf("%d are sent before %v", len(early), after)
		}
		if wait := r.wait(start.Add(after - 1)); wait != 1 {
			t.Errorf("waits %v for what is due in 1ns", wait)
		}
		sent := r.due(start.Add(after))
		if len(sent) != 1 {
			t.Fatalf("%d are sent after %v", len(sent), after)
		}
		wantRST(t, sent[0], 1, 100)
	}
	if late := r.due(start.Add(answerFor)); len(late) > 0 || len(r.resets) > 0 || r.queue.Len() > 0 {
		t.Errorf("after %v, %d are sent, and %d remembered", answerFor, len(late), len(r.resets))
	}
}

// What the kernel would answer on a reset subflow is sent with MP_FASTCLOSE, with the number that the client expects. So are
// later copies.
func TestAnswers(t *testing.T) {
	r := newRepeats()
	r.heard(rst(t, 1, 100, fastClose), start)
	wantRST(t, r.heard(rst(t, 1, 60), start.Add(time.Millisecond)), 1, 60)
	sent := r.due(start.Add(repeatAfter[0]))
	if len(sent) != 1 {
		t.Fatalf("%d copies", len(sent))
	}
	wantRST(t, sent[0], 1, 60)
	r.heard(rst(t, 3, 100, packet.FastClose{}.Option()), start) // of a handshake that has not ended
	if got := r.heard(rst(t, 3, 60), start); got != nil {
		t.Errorf("before the end of the handshake, %+v is sent", got)
	}
	if got := r.heard(rst(t, 2, 60), start); got != nil {
		t.Errorf("for another subflow, %+v is sent", got)
	}
	r.due(start.Add(answerFor))
	if got := r.heard(rst(t, 1, 60), start.Add(answerFor)); got != nil {
		t.Errorf("after %v, %+v is sent", answerFor, got)
	}
}

// The same addresses and ports may belong to another connection later.
func TestNextConnection(t *testing.T) {
	r := newRepeats()
	r.heard(rst(t, 1, 100, fastClose), start)
	r.heard(rst(t, 1, 200, fastClose), start.Add(time.Second))
	if sent := r.due(start.Add(repeatAfter[3])); len(sent) > 0 {
		t.Errorf("%d copies for the first", len(sent))
	}
	sent := r.due(start.Add(time.Second + repeatAfter[0]))
	if len(sent) != 1 || len(r.resets) != 1 || r.queue.Len() != 1 {
		t.Fatalf("%d copies, %d remembered, %d in the queue", len(sent), len(r.resets), r.queue.Len())
	}
	wantRST(t, sent[0], 1, 200)
}

func FuzzHeard(f *testing.F) {
	f.Add([]byte{0x45})
	f.Fuzz(func(_ *testing.T, b []byte) {
		r := newRepeats()
		r.heard(b, start)
		r.heard(b, start)
		for _, p := range r.due(start.Add(time.Second)) {
			p.Bytes()
		}
	})
}
