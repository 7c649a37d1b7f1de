package analyse

import (
	"github.com/detour-collective/dcol/internal/analyse/capture"
	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/packet"
)

// dealer knows the live flows of MPTCP connections, and which worker has each. All flows of a connection are with
// one worker: joins follow their token. Flows that began before the capture are with the first worker, which alone
// can find those that belong together.
type dealer struct {
	workers []*worker
	flows   flowTable
	tokens  map[uint32]int32 // to workers
	next    uint32           // the next connection's number
	clock   clock
	counts  Counts
	now     packet.Summary
}

// slots are a worker's numbers for flows.
type slots struct {
	keys []flowKey // by slot
	free []uint32
}

func (s *slots) take(key flowKey) uint32 {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		s.keys[slot] = key
		return slot
	}
	s.keys = append(s.keys, key)
	return uint32(len(s.keys) - 1)
}

func newDealer(workers int) *dealer {
	d := &dealer{flows: newFlowTable(), tokens: map[uint32]int32{}, next: 1}
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
	if f != nil && syn && f.isnKnown && f.isn != s.Seq {
		d.flows.remove(f)
		if !s.HasMPTCP {
			// The addresses and ports are used again, without MPTCP.
			d.counts.PlainSYNs++
			d.counts.PlainTCP++
			return
		}
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
		d.learn(int32(worker))
	}
	if len(b.packets) == batchSize {
		w.flush(d.clock.activity)
	}
}

// refill takes a batch back, with the slots and tokens that its worker released.
func (d *dealer) refill(i int) {
	w := d.workers[i]
	b := <-w.empty
	for _, slot := range b.slots {
		key := w.slots.keys[slot]
		if f := d.flows.find(&key); f != nil && f.slot == slot && int(f.worker) == i {
			d.flows.remove(f)
		}
		w.slots.free = append(w.slots.free, slot)
	}
	for _, token := range b.tokens {
		if d.tokens[token] == int32(i) {
			delete(d.tokens, token)
		}
	}
	b.slots, b.tokens = nil, nil
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
			f.worker = int16(d.tokens[token])
		} else if capable(s) {
			f.worker = int16(d.next % uint32(len(d.workers)))
		}
	}
	if d.workers[f.worker].now == nil {
		d.refill(int(f.worker)) // before the slot is taken, as it may free some
	}
	f.slot = d.workers[f.worker].slots.take(key)
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
func (d *dealer) learn(worker int32) {
	options(&d.now, func(m packet.MPTCP) {
		c, is := m.(packet.Capable)
		if !is {
			return
		}
		if c.Keys > 0 && !c.HasLength { // keys come with data only after they came without
			d.tokens[c.Sender.Token(c.Version)] = worker
		}
		if c.Keys > 1 && !c.HasLength {
			d.tokens[c.Receiver.Token(c.Version)] = worker
		}
	})
}

// clock makes times that go forward. A step backwards is taken out of the times that follow, and a gap stops the
// activity clock.
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

// stepBack is the difference of time between two packets, in nanoseconds, below which the capture's clock was set back.
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
