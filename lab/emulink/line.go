package emulink

import (
	"math"
	"math/bits"
	"time"
)

// line is one direction of a link: a drop-tail queue, a transmitter of a given
// rate, and a stretch on which packets travel for the delay. Packets keep
// their order, but for those that are held back at its end. It reads no clock:
// now is given, in nanoseconds of any epoch, and never decreases.
//
//	offer -> [queue | transmitter] -> departs -> [propagation] -> due -> first/pop
//	                                                 [held] <- holdBack -^
type line struct {
	p    Params
	mtu  int
	room int // of the queue, bytes
	// slack is how far from its time a packet may be delivered if the wire is busy.
	slack int64
	down  bool

	// Packets are numbered from 0. Those before head are gone, those before
	// sent have left the transmitter, tail is the next.
	fifo             []packet // indexed by number modulo its length, a power of two
	head, sent, tail uint64
	queued           int // bytes of packets [sent, tail)

	store []byte // payloads, as a ring; no packet wraps
	free  int    // where in store the next packet goes

	departed int64 // when the transmitter was or will be through with all it has
	carry    int64 // fraction of a nanosecond in departed, in 1/rate
	lastDue  int64

	held held
	luck luck

	stats Stats
	late  histogram
}

type packet struct {
	departs, due int64
	at, size     int32 // in store
	fate         fate
}

// newLine's number tells apart the random draws of lines with the same seed.
func newLine(p Params, mtu int, seed, number uint64) *line {
	l := &line{mtu: mtu, luck: newLuck(seed, number)}
	l.set(0, p)
	return l
}

const (
	// unlimitedStore is what a line without a rate can have on its way.
	unlimitedStore = 16 << 20
	// minPacket is the smallest IP packet, a bare IPv4 header.
	minPacket = 20
)

// storeSize is enough for a full queue and all that fits the propagation.
func (l *line) storeSize() int {
	size := unlimitedStore
	if l.p.Rate > 0 {
		size = l.room + int(float64(l.p.Rate)/8*(l.p.Delay+l.p.Jitter).Seconds())
	}
	// The ring loses up to a packet at its end, needs a packet's room to read
	// into, and an idle line accepts a packet larger than its queue.
	return size + 3*l.mtu
}

// space is where to put the next packet, the link's MTU long; nil if there is
// no room, which a store of the right size never says.
func (l *line) space() []byte {
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

// offer decides what becomes of the packet of size bytes that was just put
// into space.
func (l *line) offer(now int64, size int) {
	if l.down {
		l.stats.DownDrops++
		return
	}
	l.transmit(now)
	if l.p.Rate > 0 && l.queued > 0 && l.queued+size > l.room {
		l.stats.QueueDrops++
		return
	}
	fate := l.luck.draw(l.p, l.store[l.free:l.free+size])
	departs := l.serialise(now, size)
	pk := l.packet(l.tail)
	*pk = packet{departs: departs, due: l.propagate(departs), at: int32(l.free), size: int32(size), fate: fate}
	l.tail++
	l.queued += size
	l.free += size
	l.transmit(now) // on a line without a rate it is through already
}

// transmit takes out of the queue what the transmitter is through with.
func (l *line) transmit(now int64) {
	for l.sent != l.tail && l.packet(l.sent).departs <= now {
		l.queued -= int(l.packet(l.sent).size)
		l.sent++
	}
}

// serialise returns when the transmitter is through with a packet it gets now.
func (l *line) serialise(now int64, size int) int64 {
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

// propagate returns when a packet that leaves the transmitter then arrives.
func (l *line) propagate(departs int64) int64 {
	due := departs + int64(l.p.Delay)
	if l.p.Jitter > 0 {
		span := 2*uint64(l.p.Jitter) + 1
		draw, _ := bits.Mul64(l.luck.jitter.Uint64(), span)
		due += int64(draw) - int64(l.p.Jitter)
	}
	l.lastDue = max(l.lastDue, due)
	return l.lastDue
}

// next is when there is something to deliver, math.MaxInt64 if nothing is on
// its way.
func (l *line) next() int64 { return min(l.nextInOrder(), l.held.next()) }

func (l *line) nextInOrder() int64 {
	if l.head == l.tail {
		return math.MaxInt64
	}
	return l.packet(l.head).due
}

// heldIsFirst reports whether the next packet is one that was held back.
func (l *line) heldIsFirst() bool { return l.held.next() < l.nextInOrder() }

// first is the packet that is due next, and its fate.
func (l *line) first() ([]byte, fate) {
	if l.heldIsFirst() {
		first := l.held.packets[0]
		return first.data, first.fate
	}
	pk := l.packet(l.head)
	return l.store[pk.at : pk.at+pk.size], pk.fate
}

// holdBack puts the first packet off, and returns false if no more can be. It
// still has to be popped.
func (l *line) holdBack() bool {
	if l.held.full() {
		return false
	}
	data, fate := l.first()
	l.held.add(l.next()+int64(l.p.reorderBy()), data, fate)
	return true
}

// pop ends the first packet, which is due.
func (l *line) pop(now int64) {
	l.transmit(now)
	if l.heldIsFirst() {
		l.held.pop()
		return
	}
	l.head++
	if l.head == l.tail {
		l.free = 0 // stay where the processor's cache is
	}
}

// set changes the parameters. What is propagating arrives as it would have;
// what is queued is sent and propagates under the new ones.
func (l *line) set(now int64, p Params) {
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
			// It is being sent: what is left of it goes at the new rate.
			l.departed = now + int64(float64(pk.departs-now)*float64(old)/float64(p.Rate))
			pk.departs = l.departed
		} else {
			// From the transmitter's view it comes when the one before is through.
			pk.departs = l.serialise(l.departed, int(pk.size))
		}
		pk.due = l.propagate(pk.departs)
	}
	l.transmit(now)
}

// resize makes the store fit the parameters, keeping what is in it.
func (l *line) resize() {
	size := l.storeSize()
	if held := int(l.tail - l.head); held > 0 {
		size = max(size, len(l.store)) // what is in it may be more than new ones allow
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

// setDown makes the line drop everything, what is on its way included.
func (l *line) setDown(now int64, down bool) {
	l.down = down
	if !down {
		return
	}
	l.stats.DownDrops += l.tail - l.head + uint64(l.held.drop())
	l.head, l.sent, l.queued, l.free = l.tail, l.tail, 0, 0
	l.departed, l.carry, l.lastDue = now, 0, 0
}

func (l *line) packet(n uint64) *packet { return &l.fifo[n&uint64(len(l.fifo)-1)] }

// snapshot is the counters with the lateness summed up.
func (l *line) snapshot() Stats {
	s := l.stats
	s.Late = l.late.summary()
	return s
}

func (l *line) reset() {
	l.stats, l.late = Stats{}, histogram{}
}
