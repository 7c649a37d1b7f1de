package session

import (
	"context"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
	"pgregory.net/rapid"
)

func TestDepartures(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	for _, c := range []struct {
		name          string
		happens       func(d *departures)
		arrived, lost uint64
		open          int
	}{
		{"nothing", func(*departures) {}, 0, 0, 0},
		{"arrived", func(d *departures) {
			d.sent(1, at(0))
			d.acknowledged([]numbers{{1, 1}})
		}, 1, 0, 0},
		{"a probe arrived, what it replaced did not", func(d *departures) {
			d.sent(1, at(0))
			d.sent(2, at(30))
			d.acknowledged([]numbers{{2, 2}})
			d.settle(at(2000))
		}, 1, 1, 0},
		{"not answered yet", func(d *departures) {
			d.sent(1, at(0))
			d.settle(at(100000))
		}, 0, 0, 1},
		{"reordered", func(d *departures) {
			d.sent(1, at(0))
			d.sent(2, at(0))
			d.acknowledged([]numbers{{2, 2}})
			d.settle(at(1999))
			d.acknowledged([]numbers{{1, 2}})
			d.settle(at(3000))
		}, 2, 0, 0},
		{"acknowledged again", func(d *departures) {
			d.sent(1, at(0))
			d.acknowledged([]numbers{{1, 1}})
			d.acknowledged([]numbers{{1, 1}})
		}, 1, 0, 0},
		{"too late", func(d *departures) {
			d.sent(1, at(0))
			d.sent(2, at(0))
			d.acknowledged([]numbers{{2, 2}})
			d.settle(at(2000))
			d.acknowledged([]numbers{{1, 2}})
		}, 1, 1, 0},
		{"several ranges, numbers that need no acknowledgement between", func(d *departures) {
			for _, n := range []int64{1, 3, 4, 8, 9, 12} {
				d.sent(n, at(0))
			}
			d.acknowledged([]numbers{{9, 10}, {6, 6}, {2, 3}})
			d.settle(at(5000))
		}, 2, 3, 1}, // 3 and 9; 1, 4 and 8; 12
		{"numbers that were never sent", func(d *departures) {
			d.sent(1, at(0))
			d.acknowledged([]numbers{{math.MaxInt64, math.MaxInt64}})
			d.settle(at(2000))
		}, 0, 1, 0},
		{"no ranges", func(d *departures) {
			d.sent(1, at(0))
			d.acknowledged(nil)
		}, 0, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := departures{largest: -1}
			c.happens(&d)
			if d.arrived != c.arrived || d.lost != c.lost || len(d.open) != c.open {
				t.Errorf("%d arrived, %d lost, %d open; want %d, %d, %d", d.arrived, d.lost, len(d.open), c.arrived, c.lost, c.open)
			}
		})
	}
}

// Each packet counts at most once, and the number of open ones is bounded.
func TestDeparturesCountOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := departures{largest: -1}
		now := time.Unix(0, 0)
		next, sent := int64(0), uint64(0)
		arrived := map[int64]bool{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			for range rapid.IntRange(0, 100).Draw(t, "packets") {
				next += rapid.Int64Range(1, 3).Draw(t, "skip")
				d.sent(next, now)
				sent++
				if rapid.Bool().Draw(t, "arrives") {
					arrived[next] = true
				}
			}
			if rapid.Bool().Draw(t, "acknowledges") {
				var ranges []numbers
				for n := next; n > 0; n-- {
					if arrived[n] {
						ranges = append(ranges, numbers{n, n})
					}
				}
				d.acknowledged(ranges)
			}
			d.settle(now)
			if d.arrived > uint64(len(arrived)) {
				t.Fatalf("%d arrived, counted %d", len(arrived), d.arrived)
			}
			if d.arrived+d.lost+uint64(len(d.open)) > sent || len(d.open) > maxDepartures {
				t.Fatalf("%d sent, counted %d arrived, %d lost, %d open", sent, d.arrived, d.lost, len(d.open))
			}
		}
	})
}

func TestLoss(t *testing.T) {
	var l loss
	if l.ratio() != 0 {
		t.Errorf("no packets: %v", l.ratio())
	}
	var arrived, lost uint64
	for range 200 {
		arrived, lost = arrived+9, lost+1
		l.update(arrived, lost)
	}
	if got := l.ratio(); math.Abs(got-0.1) > 0.001 {
		t.Errorf("one in ten: %v", got)
	}
	if got := l.packets(); got < 400 || got > 500 { // ten for each ping, with weights that decrease by 0.98: at most 500
		t.Errorf("it was seen in %v packets", got)
	}
	for range 200 { // no more losses
		arrived += 10
		l.update(arrived, lost)
	}
	if got := l.ratio(); got < 0 || got > 0.01 {
		t.Errorf("long after: %v", got)
	}
}

func TestLossStaysARatio(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l loss
		var arrived, lost uint64
		for range rapid.IntRange(1, 50).Draw(t, "pings") {
			arrived += uint64(rapid.IntRange(0, 20).Draw(t, "arrived"))
			lost += uint64(rapid.IntRange(0, 20).Draw(t, "lost"))
			l.update(arrived, lost)
			if r := l.ratio(); r < 0 || r > 1 || math.IsNaN(r) {
				t.Fatalf("loss %v", r)
			}
		}
	})
}

// packetLog records the numbers of packets, sent and received by one end, that must be acknowledged.
type packetLog struct {
	mu             sync.Mutex
	sent, received map[int64]bool
	next           qlogwriter.Recorder // may be nil
}

func newPacketLog(next qlogwriter.Recorder) *packetLog {
	return &packetLog{sent: map[int64]bool{}, received: map[int64]bool{}, next: next}
}

func (l *packetLog) tracer(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return l }
func (l *packetLog) AddProducer() qlogwriter.Recorder                                 { return l }
func (l *packetLog) Close() error                                                     { return nil }

func (l *packetLog) RecordEvent(event qlogwriter.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e := event.(type) {
	case qlog.PacketSent:
		if e.Header.PacketType == qlog.PacketType1RTT && slices.ContainsFunc(e.Frames, wantsAcknowledgement) {
			l.sent[int64(e.Header.PacketNumber)] = true
		}
	case qlog.PacketReceived:
		if e.Header.PacketType == qlog.PacketType1RTT && slices.ContainsFunc(e.Frames, wantsAcknowledgement) {
			l.received[int64(e.Header.PacketNumber)] = true
		}
	}
	if l.next != nil {
		l.next.RecordEvent(event)
	}
}

// The counts are compared with the packets that the other end has received. As in a session, there is seldom more than
// one packet in flight. One packet in five is lost.
func TestDeparturesOfAConnection(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	atServer := newPacketLog(nil)
	config := quicConfig(1)
	config.Tracer = atServer.tracer
	listener, err := quic.ListenAddr("127.0.0.1:0", a.identity("bob").ServerTLS(alpn), config)
	if err != nil {
		t.Fatal(err)
	}
	echoed := make(chan error, 1)
	go func() {
		echoed <- func() error {
			conn, err := listener.Accept(ctx)
			if err != nil {
				return err
			}
			stream, err := conn.AcceptStream(ctx)
			if err != nil {
				return err
			}
			_, err = io.Copy(stream, stream)
			closeLine(conn, closeDone, "")
			return err
		}()
	}()
	r := startRelay(t, addrPort(listener.Addr()))

	trace := newDepartureTrace()
	atClient := newPacketLog(trace)
	config = quicConfig(-1)
	config.Tracer = atClient.tracer
	conn, err := quic.DialAddr(ctx, net.UDPAddrFromAddrPort(r.at).String(), a.identity("alice").ClientTLS(alpn, "bob"), config)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := conn.OpenStreamSync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r.percent.Store(20)
	buffer := make([]byte, 100)
	for r.dropped.Load() < 60 {
		if _, err := stream.Write(buffer); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(stream, buffer); err != nil {
			t.Fatal(err)
		}
	}
	r.percent.Store(0)
	if err := stream.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-echoed; err != nil { // everything has arrived, some of it after retransmissions
		t.Fatal(err)
	}
	closeLine(conn, closeDone, "")
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}

	arrived, lost := trace.counts(time.Now().Add(lostAfter))
	trace.mu.Lock()
	defer trace.mu.Unlock()
	open := map[int64]bool{}
	for _, p := range trace.departures.open {
		open[p.number] = true
	}
	atClient.mu.Lock()
	defer atClient.mu.Unlock()
	atServer.mu.Lock()
	defer atServer.mu.Unlock()
	var wantArrived, wantLost uint64
	for n := range atClient.sent {
		switch {
		case open[n] && n > trace.departures.largest:
		case atServer.received[n]:
			wantArrived++
		default:
			wantLost++
		}
	}
	if arrived != wantArrived || lost != wantLost || lost == 0 {
		t.Errorf("counted %d arrived, %d lost; in truth %d and %d", arrived, lost, wantArrived, wantLost)
	}
	t.Logf("%d arrived, %d lost; quic-go's own count: %d of %d", arrived, lost, conn.ConnectionStats().PacketsLost, conn.ConnectionStats().PacketsSent)
}

// A session's state has the loss of packets towards the waypoint.
func TestLossOfSession(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	w := startServer(t, served{Identity: a.identity("bob")})
	r := startRelay(t, w.at)
	m := startClient(t, a.identity("alice"), "bob", r.at)
	m.awaitUp()
	r.percent.Store(30)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for m.State().Loss < 0.1 {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("loses three in ten, and its loss is still %v", m.State().Loss)
		}
	}
}
