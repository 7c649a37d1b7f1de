package session

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
)

// This file measures the loss of a session's packets on the way to the waypoint. It uses the packet numbers that the
// waypoint acknowledges. quic-go's own counts are not suitable: most lost packets of a quiet session are replaced by
// probes, and the count of lost packets leaves those out. The count of sent packets includes packets that are never
// acknowledged.

const (
	// lostAfter is the age from which an unacknowledged packet counts as lost, if one sent later was acknowledged.
	// Packets are hardly ever reordered by a longer time.
	lostAfter = 2 * time.Second
	// maxDepartures bounds the packets that are neither acknowledged nor lost yet. A session that sends more than that
	// within lostAfter gives a good estimate without the others.
	maxDepartures = 1024
)

// departures counts how many of the packets sent on a connection arrived and how many were lost.
type departures struct {
	open          []departure // sent but not acknowledged yet, in the order of sending
	largest       int64       // the largest acknowledged packet number; -1: none
	arrived, lost uint64
}

// departure is a sent packet that the receiver must acknowledge.
type departure struct {
	number int64
	at     time.Time
}

// numbers is a range of packet numbers, both ends included.
type numbers struct{ smallest, largest int64 }

// sent records a packet. Packet numbers must increase.
func (d *departures) sent(number int64, now time.Time) {
	if len(d.open) == maxDepartures {
		d.open = slices.Delete(d.open, 0, maxDepartures/2)
	}
	d.open = append(d.open, departure{number, now})
}

// acknowledged records which packets arrived. The ranges are in descending order, as in an ACK frame.
func (d *departures) acknowledged(ranges []numbers) {
	if len(ranges) == 0 {
		return
	}
	d.largest = max(d.largest, ranges[0].largest)
	r := len(ranges) - 1
	d.open = slices.DeleteFunc(d.open, func(p departure) bool {
		for r >= 0 && ranges[r].largest < p.number {
			r--
		}
		if r < 0 || p.number < ranges[r].smallest {
			return false
		}
		d.arrived++
		return true
	})
}

// settle counts the packets that are lost by now.
func (d *departures) settle(now time.Time) {
	d.open = slices.DeleteFunc(d.open, func(p departure) bool {
		if p.number > d.largest || now.Sub(p.at) < lostAfter {
			return false
		}
		d.lost++
		return true
	})
}

// departureTrace holds the departures of one connection. quic-go reports packets to it.
type departureTrace struct {
	mu         sync.Mutex
	departures departures
}

func newDepartureTrace() *departureTrace {
	return &departureTrace{departures: departures{largest: -1}}
}

// counts returns how many packets arrived and how many were lost, until now.
func (t *departureTrace) counts(now time.Time) (arrived, lost uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.departures.settle(now)
	return t.departures.arrived, t.departures.lost
}

// tracer returns t for use as quic.Config's Tracer.
func (t *departureTrace) tracer(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return t }

// AddProducer implements qlogwriter.Trace.
func (t *departureTrace) AddProducer() qlogwriter.Recorder { return t }

// Close implements qlogwriter.Recorder.
func (t *departureTrace) Close() error { return nil }

// RecordEvent implements qlogwriter.Recorder. It ignores packets of the handshake, which have separate packet numbers.
func (t *departureTrace) RecordEvent(event qlogwriter.Event) {
	switch e := event.(type) {
	case qlog.PacketSent:
		if e.Header.PacketType == qlog.PacketType1RTT && slices.ContainsFunc(e.Frames, wantsAcknowledgement) {
			t.mu.Lock()
			t.departures.sent(int64(e.Header.PacketNumber), time.Now())
			t.mu.Unlock()
		}
	case qlog.PacketReceived:
		if e.Header.PacketType != qlog.PacketType1RTT {
			return
		}
		for _, f := range e.Frames {
			if ack, ok := f.Frame.(*qlog.AckFrame); ok {
				t.mu.Lock()
				t.departures.acknowledged(numbersOf(ack))
				t.mu.Unlock()
			}
		}
	}
}

// wantsAcknowledgement reports whether a packet with this frame is ack-eliciting (RFC 9002, section 2).
func wantsAcknowledgement(f qlog.Frame) bool {
	switch f.Frame.(type) {
	case *qlog.AckFrame, *qlog.ConnectionCloseFrame:
		return false
	}
	return true
}

func numbersOf(ack *qlog.AckFrame) []numbers {
	ranges := make([]numbers, len(ack.AckRanges))
	for i, r := range ack.AckRanges {
		ranges[i] = numbers{int64(r.Smallest), int64(r.Largest)}
	}
	return ranges
}

// loss estimates recent loss from cumulative counts.
type loss struct {
	arrived, lost         float64
	lastArrived, lastLost uint64
}

// keep is the weight that earlier counts keep at each ping. It halves them after 34 pings.
const keep = 0.98

func (l *loss) update(arrived, lost uint64) {
	l.arrived = l.arrived*keep + float64(arrived-l.lastArrived)
	l.lost = l.lost*keep + float64(lost-l.lastLost)
	l.lastArrived, l.lastLost = arrived, lost
}

// packets returns the number of packets from which the loss was computed. Older packets count less.
func (l *loss) packets() float64 { return l.arrived + l.lost }

func (l *loss) ratio() float64 {
	if l.lost == 0 {
		return 0
	}
	return l.lost / (l.arrived + l.lost)
}
