package datacentre

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Options are the choices of a simulation.
type Options struct {
	Control  Control
	Duration time.Duration
	WarmUp   time.Duration // is not counted
	Queue    int           // packets that a link holds; 0: 100
	Delay    time.Duration // of a link; 0: 10 µs
}

// PacketBits is the size of a data packet.
const PacketBits = 1500 * 8

// Result has what a simulation measured.
type Result struct {
	Goodput []float64 // bit/s of each connection
	Drops   int
	Events  int // hops of data packets, and acknowledgements
}

// The wheel of events has slots of 1.024 µs, for 134 ms. No event is further away: a full queue of the slowest link takes
// less, and timers are not in it.
const (
	slotBits  = 10
	slotCount = 1 << 17
	tick      = 10 * time.Millisecond // between looks at timers
	leastRTO  = 200 * time.Millisecond
)

// event is a packet's arrival at the queue of its path's next link, or at the end, or its acknowledgement's arrival.
type event struct {
	at   int64 // ns
	flow int32
	seq  uint32
	hop  int16 // index of the link; ack: the acknowledgement
}

const ack = -1

type simulator struct {
	wheel   [][]event
	now     int64
	busy    []int64 // when each link has sent all that it holds
	service []int64 // ns for a packet
	limit   []int64 // the longest wait, ns
	delay   int64
	flows   []*subflow
	from    int64 // counting begins
	result  Result
}

// Simulate runs connections, each with subflows on the given paths.
func Simulate(t *Topology, placed [][][]int, o Options) Result {
	if o.Queue == 0 {
		o.Queue = 100
	}
	if o.Delay == 0 {
		o.Delay = 10 * time.Microsecond
	}
	s := &simulator{wheel: make([][]event, slotCount), delay: int64(o.Delay), from: int64(o.WarmUp)}
	for _, l := range t.Links {
		service := int64(math.Round(PacketBits / l.Rate * 1e9))
		s.busy, s.service, s.limit = append(s.busy, 0), append(s.service, service), append(s.limit, service*int64(o.Queue))
	}
	s.result.Goodput = make([]float64, len(placed))
	for i, paths := range placed {
		c := &connection{control: o.Control}
		for _, path := range paths {
			f := newSubflow(c, i, path, int32(len(s.flows)))
			s.flows = append(s.flows, f)
			c.subflows = append(c.subflows, f)
		}
	}
	s.run(int64(o.Duration))
	counted := (o.Duration - o.WarmUp).Seconds()
	for _, f := range s.flows {
		s.result.Goodput[f.index] += float64(f.delivered) * PacketBits / counted
	}
	return s.result
}

// run handles all events until the end.
func (s *simulator) run(end int64) {
	for i, f := range s.flows { // they do not begin in step
		s.now = int64(i) * 7919
		s.fill(f)
	}
	s.now = 0
	nextTick := int64(tick)
	for slot := int64(0); slot<<slotBits < end; slot++ {
		at := slot & (slotCount - 1)
		events := s.wheel[at]
		if len(events) > 1 {
			slices.SortFunc(events, func(a, b event) int {
				return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.flow, b.flow), cmp.Compare(a.seq, b.seq))
			})
		}
		s.wheel[at] = nil
		for _, e := range events {
			s.now = e.at
			s.handle(e)
		}
		s.wheel[at] = append(events[:0], s.wheel[at]...)
		if slot<<slotBits >= nextTick {
			s.now = slot << slotBits
			s.timers()
			nextTick += int64(tick)
		}
	}
}

// put adds an event, at least one slot ahead of the one that is handled.
func (s *simulator) put(e event) {
	at := e.at >> slotBits & (slotCount - 1)
	s.wheel[at] = append(s.wheel[at], e)
}

func (s *simulator) handle(e event) {
	s.result.Events++
	f := s.flows[e.flow]
	switch {
	case e.hop == ack:
		f.acknowledged(e.seq, s.now)
		s.fill(f)
	case int(e.hop) == len(f.path):
		if s.now >= s.from {
			f.delivered++
		}
		s.put(event{s.now + f.back(s.delay), e.flow, e.seq, ack})
	default:
		s.enqueue(f, e)
	}
}

// enqueue puts a packet into a link's queue, or drops it.
func (s *simulator) enqueue(f *subflow, e event) {
	l := f.path[e.hop]
	begins := max(s.busy[l], s.now)
	if begins-s.now > s.limit[l] {
		s.result.Drops++
		return
	}
	s.busy[l] = begins + s.service[l]
	s.put(event{s.busy[l] + s.delay, e.flow, e.seq, e.hop + 1})
}

// fill sends packets until the window is full.
func (s *simulator) fill(f *subflow) {
	for f.inFlight < int(f.window) {
		seq := f.send(s.now)
		s.enqueue(f, event{s.now, f.number, seq, 0})
	}
}

// timers ends the wait for what was lost at the end of a window.
func (s *simulator) timers() {
	for _, f := range s.flows {
		if f.inFlight > 0 && s.now-f.heard > max(int64(leastRTO), 4*int64(f.rtt)) {
			f.timedOut(s.now)
			s.fill(f)
		}
	}
}
