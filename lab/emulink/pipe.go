package emulink

import (
	"math"
	"math/bits"
	"time"
)

// pipe is one direction of a link: a drop-tail queue, a transmitter of a given rate, and a propagation delay.
// Packets keep their order, except those held back to be reordered. A pipe reads no clock: its caller gives
// it the time, in nanoseconds since any epoch, which never decreases.
//
//	offer -> [queue | transmitter] -> departs -> [propagation] -> due -> first/pop
//	                                                 [held] <- holdBack -^
type pipe struct {
	p    Params
	mtu  int
	room int // of the queue, bytes
	// slack bounds how early or late a packet may be delivered when the emulator is busy.
	slack int64
	down  bool

	// Packets are numbered from 0. Those before head were delivered, those before sent have left the
	// transmitter, and tail is the next number.
	fifo             []packet // ring, indexed by number modulo its length, a power of two
	head, sent, tail uint64
	queued           int // bytes of packets [sent, tail)

	store []byte // ring of payloads; no packet wraps around
	free  int    // offset in store of the next packet

	departed int64 // when the transmitter becomes idle
	carry    int64 // fraction of a nanosecond in departed, in 1/rate
	lastDue  int64

	held     reorderBuffer
	impairer impairer
	radio    *radio // of both directions; nil: always on

	stats Stats
	late  histogram
}

type packet struct {
	departs, due int64
	at, size     int32 // in store
	fate         fate
}

// newPipe returns a pipe. Pipes with the same seed and different numbers draw different random numbers.
func newPipe(p Params, mtu int, seed, number uint64) *pipe {
	l := &pipe{mtu: mtu, impairer: newImpairer(seed, number)}
	l.set(0, p)
	return l
}

const (
	// unlimitedStore bounds the bytes in flight on a pipe without a rate.
	unlimitedStore = 16 << 20
	// minPacket is the smallest IP packet, a bare IPv4 header.
	minPacket = 20
)

// storeSize returns enough for a full queue and everything in flight.
func (l *pipe) storeSize() int {
	size := unlimitedStore
	if l.p.Rate > 0 {
		size = l.room + int(float64(l.p.Rate)/8*(l.p.Delay+l.p.Jitter).Seconds())
	}
	// The ring wastes up to one packet at its end and needs room for one packet to read into. An idle pipe
	// also accepts a packet larger than its queue.
	return size + 3*l.mtu
}

// space returns a buffer of the link's MTU for the next packet. It returns nil if there is no room, which
// does not happen if the store has the right size.
func (l *pipe) space() []byte {
	if l.tail-l.head == uint64(len(l.fifo)) {
		return nil
	}
	oldest := len(l.store) // first byte in use after free
	if l.head != l.tail {
		if at := int(l.packet(l.head).at); at >= l.free {
			oldest = at
		}
	}
	if l.free+l.mtu > oldest {
		if oldest != len(l.store) || l.head == l.tail || l.mtu > int(l.packet(l.head).at) {
			return nil
		}
		l.free = 0
	}
	return l.store[l.free : l.free+l.mtu]
}

// offer queues or drops the packet of size bytes that was just written to space.
func (l *pipe) offer(now int64, size int) {
	if l.down {
		l.stats.DownDrops++
		return
	}
	l.transmit(now)
	if l.p.Rate > 0 && l.queued > 0 && l.queued+size > l.room {
		l.stats.QueueDrops++
		return
	}
	fate := l.impairer.draw(l.p, l.store[l.free:l.free+size])
	carries := now
	if l.radio != nil && isTCP(l.store[l.free:l.free+size]) {
		carries = l.radio.use(now)
	}
	departs := l.serialise(carries, size)
	pk := l.packet(l.tail)
	*pk = packet{departs: departs, due: l.propagate(departs), at: int32(l.free), size: int32(size), fate: fate}
	l.tail++
	l.queued += size
	l.free += size
	l.transmit(now) // without a rate, it is already sent
}

// transmit removes packets from the queue that the transmitter has sent.
func (l *pipe) transmit(now int64) {
	for l.sent != l.tail && l.packet(l.sent).departs <= now {
		l.queued -= int(l.packet(l.sent).size)
		l.sent++
	}
}

// serialise returns when the transmitter has sent a packet that is queued now.
func (l *pipe) serialise(now int64, size int) int64 {
	if now > l.departed {
		l.departed, l.carry = now, 0
	}
	if l.p.Rate > 0 {
		scaled := int64(size)*8*int64(time.Second) + l.carry
		l.departed += scaled / l.p.Rate
		l.carry = scaled % l.p.Rate
	}
	return l.departed
}

// propagate returns when a packet arrives that leaves the transmitter at departs.
func (l *pipe) propagate(departs int64) int64 {
	due := departs + int64(l.p.Delay)
	if l.p.Jitter > 0 {
		span := 2*uint64(l.p.Jitter) + 1
		draw, _ := bits.Mul64(l.impairer.jitter.Uint64(), span)
		due += int64(draw) - int64(l.p.Jitter)
	}
	l.lastDue = max(l.lastDue, due)
	return l.lastDue
}

// next returns when the next packet is due, or math.MaxInt64 if none is in flight.
func (l *pipe) next() int64 { return min(l.nextInOrder(), l.held.next()) }

func (l *pipe) nextInOrder() int64 {
	if l.head == l.tail {
		return math.MaxInt64
	}
	return l.packet(l.head).due
}

// heldIsFirst reports whether the next packet due was held back.
func (l *pipe) heldIsFirst() bool { return l.held.next() < l.nextInOrder() }

// first returns the packet that is due next, and its fate.
func (l *pipe) first() ([]byte, fate) {
	if l.heldIsFirst() {
		first := l.held.packets[0]
		return first.data, first.fate
	}
	pk := l.packet(l.head)
	return l.store[pk.at : pk.at+pk.size], pk.fate
}

// holdBack delays the first packet. It returns false if too many are held back already. The caller still has
// to pop the packet.
func (l *pipe) holdBack() bool {
	if l.held.full() {
		return false
	}
	data, fate := l.first()
	l.held.add(l.next()+int64(l.p.reorderBy()), data, fate)
	return true
}

// pop removes the first packet, which is due.
func (l *pipe) pop(now int64) {
	l.transmit(now)
	if l.heldIsFirst() {
		l.held.pop()
		return
	}
	l.head++
	if l.head == l.tail {
		l.free = 0 // stay within the processor's cache
	}
}

// set changes the parameters. Packets already propagating keep their arrival times. Queued ones are sent
// under the new parameters.
func (l *pipe) set(now int64, p Params) {
	l.transmit(now)
	old := l.p.Rate
	l.p, l.room = p, p.QueueBytes()
	l.slack = min(together, int64(p.Delay-p.Jitter)/delayShare)
	l.resize()

	l.departed, l.carry, l.lastDue = now, 0, 0
	if l.sent > l.head {
		l.lastDue = l.packet(l.sent - 1).due
	}
	for i := l.sent; i != l.tail; i++ {
		pk := l.packet(i)
		if i == l.sent && p.Rate > 0 {
			// This packet is being sent: the rest of it goes at the new rate.
			l.departed = now + int64(float64(pk.departs-now)*float64(old)/float64(p.Rate))
			pk.departs = l.departed
		} else {
			// The transmitter starts on it when the packet before is sent.
			pk.departs = l.serialise(l.departed, int(pk.size))
		}
		pk.due = l.propagate(pk.departs)
	}
	l.transmit(now)
}

// resize fits the store to the parameters and keeps its packets.
func (l *pipe) resize() {
	size := l.storeSize()
	if held := int(l.tail - l.head); held > 0 {
		size = max(size, len(l.store)) // it may hold more than the new parameters allow
	}
	entries := 1 << bits.Len(uint(size/minPacket))
	if size == len(l.store) && entries == len(l.fifo) {
		return
	}
	store, fifo, free := make([]byte, size), make([]packet, entries), 0
	for i := l.head; i != l.tail; i++ {
		pk := *l.packet(i)
		copy(store[free:], l.store[pk.at:pk.at+pk.size])
		pk.at = int32(free)
		free += int(pk.size)
		fifo[i&uint64(entries-1)] = pk
	}
	l.store, l.fifo, l.free = store, fifo, free
}

// setDown makes the pipe drop everything, including packets in flight.
func (l *pipe) setDown(now int64, down bool) {
	l.down = down
	if !down {
		return
	}
	l.stats.DownDrops += l.tail - l.head + uint64(l.held.drop())
	l.head, l.sent, l.queued, l.free = l.tail, l.tail, 0, 0
	l.departed, l.carry, l.lastDue = now, 0, 0
}

func (l *pipe) packet(n uint64) *packet { return &l.fifo[n&uint64(len(l.fifo)-1)] }

// snapshot returns the counters, with the lateness summarised.
func (l *pipe) snapshot(now int64) Stats {
	s := l.stats
	s.Late = l.late.summary()
	if l.radio != nil {
		s.Energy = l.radio.joules(now)
	}
	return s
}

func (l *pipe) reset(now int64) {
	l.stats, l.late = Stats{}, histogram{}
	if l.radio != nil {
		l.radio.count(now)
		l.radio.energy = 0
	}
}
