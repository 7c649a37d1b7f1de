package track

// Tracker follows the connections of one shard. It has one owner.
type Tracker struct {
	options Options
	flows   []*subflow // by slot
	tokens  map[uint32]*connection
	orphans orphans // that began before the capture, and can adopt flows
	quiet   queue   // of all connections, each once; it alone knows their places
	closed  queue
	live    int
	// subflows counts those of live connections, which need most of the memory.
	subflows int
	now      int64

	freed []Freed // since the caller's last call of Released

	// Evicted counts connections that were ended early, Late packets that came after their connection's end,
	// or that show none.
	Evicted, Late uint64
}

// New makes a Tracker.
func New(o Options) *Tracker {
	return &Tracker{options: o, tokens: map[uint32]*connection{}, orphans: orphans{}}
}

// queue holds connections in the order in which they must be checked.
type queue struct {
	list []due
	head int
	gone int // entries before the list
}

type due struct {
	c  *connection
	at int64
}

func (q *queue) push(c *connection, at int64) {
	if q.head > 1024 && q.head > len(q.list)/2 {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.gone += q.head
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, due{c, at})
}

// place returns that of the latest entry.
func (q *queue) place() int { return q.gone + len(q.list) - 1 }

// forget lets go of a connection that ended before it was looked at, whose memory is free then.
func (q *queue) forget(c *connection) {
	if i := c.queued - q.gone; i >= q.head && i < len(q.list) && q.list[i].c == c {
		q.list[i].c = nil
	}
}

func (q *queue) first() (d due, ok bool) {
	if q.head == len(q.list) {
		return due{}, false
	}
	return q.list[q.head], true
}

func (q *queue) pop() {
	q.list[q.head] = due{}
	q.head++
}

// Handle processes a packet.
func (t *Tracker) Handle(p *Packet) {
	t.now = p.Time
	var s *subflow
	if p.Opens {
		s = t.open(p)
	} else if int(p.Slot) < len(t.flows) {
		s = t.flows[p.Slot]
	}
	if s == nil {
		t.Late++
		return
	}
	t.segment(s, p)
}

// Expire ends connections that have been closed or idle for long enough, at a time of Packet.Clock. The caller
// calls it from time to time.
func (t *Tracker) Expire(clock int64) {
	for {
		d, ok := t.closed.first()
		if !ok || d.at > clock {
			break
		}
		t.closed.pop()
		switch {
		case d.c.finished:
		case d.c.reopened:
			d.c.reopened, d.c.closing = false, false
		default:
			t.finish(d.c)
		}
	}
	for {
		d, ok := t.quiet.first()
		if !ok || d.at > clock {
			break
		}
		t.quiet.pop()
		switch c := d.c; {
		case c == nil:
		case c.active > d.at-t.options.Idle:
			t.watch(c, c.active)
		default:
			c.idle = true
			t.finish(c)
		}
	}
	for t.live > t.options.Connections || t.subflows > subflowsEach*t.options.Connections {
		if d, ok := t.closed.first(); ok {
			t.closed.pop()
			if !d.c.finished && !d.c.reopened {
				t.finish(d.c)
			}
			continue
		}
		d, ok := t.quiet.first()
		if !ok {
			break
		}
		t.quiet.pop()
		if d.c != nil {
			t.Evicted++
			d.c.evicted = true
			t.finish(d.c)
		}
	}
}

// Close ends all connections, as at the end of the capture.
func (t *Tracker) Close() {
	for {
		d, ok := t.quiet.first()
		if !ok {
			return
		}
		t.quiet.pop()
		if d.c != nil {
			t.finish(d.c)
		}
	}
}

// Freed is a slot that may be used again.
type Freed struct {
	Slot uint32
	// Closed reports that the flow was closed, so that packets that still come belong to no other connection.
	Closed bool
}

// Released returns the slots that are free, and forgets them. They are valid until the next packet.
func (t *Tracker) Released() []Freed {
	freed := t.freed
	t.freed = nil
	return freed
}

// watch ends a connection when nothing has come since a time for long enough.
func (t *Tracker) watch(c *connection, since int64) {
	t.quiet.push(c, since+t.options.Idle)
	c.queued = t.quiet.place()
}

// onlyKeptAlive reports whether only keep-alives and their answers were seen: acknowledgements that do not advance.
// They show no connection of their own. The one that they keep alive ended by inactivity, or ended before the capture.
func (c *connection) onlyKeptAlive() bool {
	if !c.midway || c.keyKnown[Client] || c.keyKnown[Server] || c.fastClose || c.fallback.fail || len(c.signals) > 0 {
		return false
	}
	for i := range c.streams {
		if s := &c.streams[i]; s.known || s.ackMoved {
			return false
		}
	}
	for _, s := range c.subflows {
		if s.join || s.synAck != 0 || s.end != open || s.half[Client].firstData != 0 || s.half[Server].firstData != 0 {
			return false
		}
	}
	return true
}

func (t *Tracker) finish(c *connection) {
	c.finished = true
	t.quiet.forget(c)
	t.live--
	t.orphans.remove(c)
	t.subflows -= len(c.subflows)
	for _, token := range c.tokens {
		if t.tokens[token] == c {
			delete(t.tokens, token)
		}
	}
	for _, s := range c.subflows {
		t.flows[s.slot] = nil
		t.freed = append(t.freed, Freed{s.slot, c.closing || s.closed()})
	}
	if c.onlyKeptAlive() {
		t.Late += c.packets
		return
	}
	t.options.Done(c.record(t.now, t.options.Idle))
}
