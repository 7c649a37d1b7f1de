package datacentre

import "math"

// Control is a congestion control.
type Control int

// The congestion controls.
const (
	LIA   Control = iota // coupled (RFC 6356)
	Cubic                // of each subflow on its own (RFC 9438)
)

// connection has the subflows that share data.
type connection struct {
	control  Control
	subflows []*subflow
}

// subflow is the sender's state of a path. Packets keep their order, so an acknowledgement shows that all packets before
// it, which are not acknowledged, are lost.
type subflow struct {
	connection *connection
	index      int // of the connection
	number     int32
	path       []int

	next      uint32 // number of the next packet
	lowest    uint32 // number of the first packet in flight
	recover   uint32 // losses before this number belong to one event
	inFlight  int
	window    float64 // packets
	threshold float64
	rtt       float64 // ns, smoothed
	sentAt    [sentRing]int64
	heard     int64 // ns
	delivered int

	epoch, largest, offset float64 // of CUBIC: begin in ns, window before the loss, time to reach it again in s
}

// sentRing holds the times of packets in flight: the most that a path's queues hold is below it.
const sentRing = 1 << 11

const (
	firstWindow = 10
	cubicC      = 0.4
	cubicBeta   = 0.7
)

func newSubflow(c *connection, index int, path []int, number int32) *subflow {
	return &subflow{connection: c, index: index, number: number, path: path, window: firstWindow, threshold: math.Inf(1)}
}

// back returns the time that an acknowledgement takes.
func (f *subflow) back(delay int64) int64 {
	const transmission = 4000 // ns, of 50 bytes at 100 Mbit/s
	return int64(len(f.path)) * (delay + transmission)
}

// send counts a packet that is sent.
func (f *subflow) send(now int64) uint32 {
	seq := f.next
	f.sentAt[seq%sentRing] = now
	if f.inFlight == 0 {
		f.heard = now
	}
	f.next++
	f.inFlight++
	f.window = min(f.window, sentRing-1)
	return seq
}

// acknowledged handles an acknowledgement.
func (f *subflow) acknowledged(seq uint32, now int64) {
	if int32(seq-f.lowest) < 0 {
		return // given up as lost
	}
	lost := int(seq - f.lowest)
	f.lowest = seq + 1
	f.inFlight -= lost + 1
	f.heard = now
	sample := float64(now - f.sentAt[seq%sentRing])
	if f.rtt == 0 {
		f.rtt = sample
	}
	f.rtt += (sample - f.rtt) / 8
	if lost > 0 && int32(seq-f.recover) >= 0 {
		f.decrease()
		f.recover = f.next
		return
	}
	f.increase(now)
}

// timedOut gives all packets in flight up.
func (f *subflow) timedOut(now int64) {
	f.decrease()
	f.window = 1
	f.lowest, f.recover, f.inFlight, f.heard = f.next, f.next, 0, now
}

func (f *subflow) decrease() {
	const least = 2
	if f.connection.control == Cubic {
		f.largest, f.epoch = f.window, 0
		f.window = max(least, f.window*cubicBeta)
		f.offset = math.Cbrt(f.largest * (1 - cubicBeta) / cubicC)
	} else {
		f.window = max(least, f.window/2)
	}
	f.threshold = f.window
}

func (f *subflow) increase(now int64) {
	switch {
	case f.window < f.threshold:
		f.window++
	case f.connection.control == Cubic:
		f.cubic(now)
	default:
		f.window += f.connection.coupled(f)
	}
}

// coupled returns LIA's increase for an acknowledgement (RFC 6356, section 3).
func (c *connection) coupled(f *subflow) float64 {
	best, sum := 0.0, 0.0
	for _, s := range c.subflows {
		if s.rtt == 0 {
			continue
		}
		best = max(best, s.window/(s.rtt*s.rtt))
		sum += s.window / s.rtt
	}
	return min(best/(sum*sum), 1/f.window) // alpha over the total window, which cancels
}

// cubic raises the window towards CUBIC's function of the time, and no slower than Reno would.
func (f *subflow) cubic(now int64) {
	const second = 1e9
	if f.epoch == 0 {
		f.epoch = float64(now)
	}
	t := (float64(now) - f.epoch + f.rtt) / second
	ahead := t - f.offset
	target := cubicC*ahead*ahead*ahead + f.largest
	reno := f.largest*cubicBeta + 3*(1-cubicBeta)/(1+cubicBeta)*t*second/f.rtt
	if target = max(target, reno); target > f.window {
		f.window += min((target-f.window)/f.window, 0.5)
	} else {
		f.window += 0.01 / f.window
	}
}
