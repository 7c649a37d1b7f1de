package analyse

import (
	"github.com/detour-collective/dcol/internal/analyse/capture"
	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/packet"
)

// dealer knows the live flows of MPTCP connections, and the worker of each. All flows of a connection have one worker:
// joins follow their token. Flows that began before the capture go to the first worker, because only one worker can
// find which of them belong together.
type dealer struct {
	workers []*worker
	flows   flowTable
	graves  graves
	tokens  map[uint32]holder
	next    uint32 // the next connection's number
	clock   clock
	counts  Counts
	now     packet.Summary
}

// holder is the slot of the flow from which a token is known.
type holder struct {
	worker int16
	slot   uint32
}

// slots are a worker's numbers for flows.
type slots struct {
	list []slot
	free []uint32
}

// slot has the data that is forgotten with a flow: its key, and the tokens of the keys that it brought,
// first the lower end's, then the higher end's. Each end has at most one, as in track, so that no flow takes
// more memory by naming more.
type slot struct {
	key    flowKey
	tokens [2]uint32
	learnt [2]bool
}

func (s *slots) take(key flowKey) uint32 {
	if n := len(s.free); n > 0 {
		number := s.free[n-1]
		s.free = s.free[:n-1]
		s.list[number] = slot{key: key}
		return number
	}
	s.list = append(s.list, slot{key: key})
	return uint32(len(s.list) - 1)
}

func newDealer(workers int) *dealer {
	d := &dealer{flows: newFlowTable(), tokens: map[uint32]holder{}, next: 1}
	for range workers {
		w := &worker{full: make(chan *batch, batchesEach), empty: make(chan *batch, batchesEach)}
		for range batchesEach {
			w.empty <- &batch{packets: make([]track.Packet, 0, batchSize)}
		}
		d.workers = append(d.workers, w)
	}
	return d
}

// deal gives a packet of an MPTCP connection to its worker.
func (d *dealer) deal(p *capture.Packet) {
	d.counts.Packets++
	d.counts.Bytes += uint64(p.Length)
	d.clock.tick(p.Time, &d.counts)
	ip := p.IP()
	if ip == nil {
		d.counts.Other++
		if !p.Link.Known() {
			d.counts.LinkLayers++
		}
		return
	}
	s := &d.now
	if !s.Summarise(ip, p.Length-(len(p.Data)-len(ip))) {
		d.counts.Other++
		return
	}
	d.counts.TCP++
	key, low := keyOf(s)
	f := d.flows.find(&key)
	opens := false
	syn := s.Flags&(packet.SYN|packet.ACK|packet.RST) == packet.SYN
	if f != nil && f.buried {
		if f = d.visit(f); f != nil {
			d.counts.MPTCP++
			d.counts.Late++
			return
		}
	}
	if f != nil && syn && f.isnKnown && f.isn != s.Seq {
		d.flows.remove(f)
		f = nil // a new connection between the same addresses and ports
	}
	if f == nil {
		if !s.HasMPTCP {
			if syn {
				d.counts.PlainSYNs++
			}
			d.counts.PlainTCP++
			return
		}
		if s.Payload == 0 && s.Flags&(packet.FIN|packet.RST) != 0 {
			// The capture has only the end of this connection, or the connection was forgotten.
			d.counts.MPTCP++
			d.counts.Late++
			return
		}
		f, opens = d.open(key), true
	}
	d.counts.MPTCP++
	worker, slot := f.worker, f.slot
	w := d.workers[worker]
	if w.now == nil {
		d.refill(int(worker))
	}
	b := w.now
	b.packets = append(b.packets, track.Packet{Time: d.clock.now, Clock: d.clock.activity, Slot: slot, Opens: opens, Low: low, Summary: *s})
	if opens {
		b.packets[len(b.packets)-1].Number = d.next
		if !syn || !d.joins() {
			d.next++
		}
	}
	if s.OthersLen > 0 {
		d.learn(worker, slot, low)
	}
	if len(b.packets) == batchSize {
		w.flush(d.clock.activity)
	}
}

// visit returns f, a closed flow whose grave was found, or nil if the packet does not belong to it: the grave is old,
// or the packet begins a new connection between the same addresses and ports.
func (d *dealer) visit(f *flow) *flow {
	key := f.key
	d.graves.open(&d.flows, d.clock.activity)
	if f = d.flows.find(&key); f == nil {
		return nil
	}
	s := &d.now
	begins := false
	if s.Flags.Has(packet.SYN) && s.Flags&packet.RST == 0 {
		isn := s.Seq
		if s.Flags.Has(packet.ACK) {
			isn = s.Ack - 1
		}
		begins = !f.isnKnown || f.isn != isn
	}
	if !begins {
		return f
	}
	d.flows.remove(f)
	return nil
}

// refill takes a batch back, with the slots that its worker released, and forgets their flows and tokens.
func (d *dealer) refill(i int) {
	w := d.workers[i]
	b := <-w.empty
	for _, freed := range b.freed {
		was := &w.slots.list[freed.Slot]
		if f := d.flows.find(&was.key); f != nil && !f.buried && f.slot == freed.Slot && int(f.worker) == i {
			if freed.Closed {
				d.graves.bury(f, d.clock.activity)
			} else {
				d.flows.remove(f)
			}
		}
		for end, token := range was.tokens {
			if was.learnt[end] && d.tokens[token] == (holder{int16(i), freed.Slot}) {
				delete(d.tokens, token)
			}
		}
		w.slots.free = append(w.slots.free, freed.Slot)
	}
	d.graves.open(&d.flows, d.clock.activity)
	b.freed = nil
	w.now = b
}

func (w *worker) flush(clock int64) {
	if w.now != nil {
		w.now.clock = clock
		w.full <- w.now
		w.now = nil
	}
}

// open makes a flow for the packet, and chooses its worker.
func (d *dealer) open(key flowKey) *flow {
	s := &d.now
	f := flow{key: key}
	switch syn := s.Flags.Has(packet.SYN); {
	case syn && s.Flags.Has(packet.ACK):
		f.isn, f.isnKnown = s.Ack-1, true
	case syn:
		f.isn, f.isnKnown = s.Seq, true
	}
	if s.Flags.Has(packet.SYN) {
		if token, ok := joinToken(s); ok {
			f.worker = d.tokens[token].worker
		} else if capable(s) {
			f.worker = int16(d.next % uint32(len(d.workers)))
		}
	}
	if d.workers[f.worker].now == nil {
		d.refill(int(f.worker)) // before the slot is taken, as it may free some
	}
	slots := &d.workers[f.worker].slots
	f.slot = slots.take(key)
	if _, joins := joinToken(s); joins {
		slots.list[f.slot].learnt = [2]bool{true, true} // nothing: a join has no keys
	}
	d.flows.insert(f)
	return d.flows.find(&key)
}

func (d *dealer) joins() bool {
	token, ok := joinToken(&d.now)
	if !ok {
		return false
	}
	_, known := d.tokens[token]
	return known
}

// options calls a function with each MPTCP option but DSS.
func options(s *packet.Summary, use func(packet.MPTCP)) {
	for rest := s.Others[:s.OthersLen]; len(rest) > 0; {
		var o packet.Option
		o, rest = s.Other(rest)
		if m, err := o.MPTCP(); err == nil {
			use(m)
		}
	}
}

func joinToken(s *packet.Summary) (token uint32, ok bool) {
	options(s, func(m packet.MPTCP) {
		if j, is := m.(packet.JoinSYN); is {
			token, ok = j.Token, true
		}
	})
	return token, ok
}

func capable(s *packet.Summary) (ok bool) {
	options(s, func(m packet.MPTCP) {
		if _, is := m.(packet.Capable); is {
			ok = true
		}
	})
	return ok
}

// learn notes the tokens of the keys in MP_CAPABLE.
func (d *dealer) learn(worker int16, number uint32, low bool) {
	options(&d.now, func(m packet.MPTCP) {
		c, is := m.(packet.Capable)
		if !is || c.HasLength { // keys come with data only after they came without
			return
		}
		sender := 0
		if !low {
			sender = 1
		}
		if c.Keys > 0 {
			d.hold(worker, number, sender, c.Sender.Token(c.Version))
		}
		if c.Keys > 1 {
			d.hold(worker, number, 1-sender, c.Receiver.Token(c.Version))
		}
	})
}

func (d *dealer) hold(worker int16, number uint32, end int, token uint32) {
	s := &d.workers[worker].slots.list[number]
	if s.learnt[end] {
		return
	}
	s.learnt[end], s.tokens[end] = true, token
	d.tokens[token] = holder{worker, number}
}

// clock makes times that only go forward. It removes a step backwards from all later times. A gap
// stops the activity clock.
type clock struct {
	began       bool
	first, last int64 // as captured
	latest      int64 // as captured, the highest
	now         int64 // corrected
	offset      int64
	activity    int64
}

// maxGap limits the time by which one packet moves the activity clock forward, in nanoseconds.
const maxGap = 10e9

// stepBack is the difference between two packets' times, in nanoseconds, below which the capture's clock was set back.
// Smaller steps back are disorder, as in captures of several queues.
const stepBack = -1e9

func (c *clock) tick(t int64, counts *Counts) {
	if !c.began {
		c.began, c.first, c.last, c.latest, c.now = true, t, t, t, t
		return
	}
	if t >= c.latest {
		// The step is over, if there was one.
		c.latest, c.offset = t, 0
	}
	switch difference := t - c.last; {
	case difference < stepBack:
		counts.ClockSteps++
		c.offset = c.now - t
	case difference < 0:
		counts.Disordered++
	}
	c.last = t
	was := c.now
	c.now = t + c.offset
	if forward := c.now - was; forward > 0 {
		c.activity += min(forward, maxGap)
	}
}
