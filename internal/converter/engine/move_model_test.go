package engine

import (
	"bytes"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/deadline"
)

// model is two sockets of a pair, pipes, and an edge-triggered epoll, as Linux has them but in memory. What Linux may do
// or not, such as to take less than it has room for, rapid chooses.
type model struct {
	t       *rapid.T
	sockets map[int]*modelSocket
	pipes   map[int]*[]byte // by both of their descriptors
}

type modelSocket struct {
	in         []byte // has arrived and is not read
	received   []byte // all that has arrived
	mark       int    // where a read stops though there is more, in received; 0: nowhere
	eof, reset bool   // has arrived
	room       int    // for bytes to send
	enough     int    // this much room makes it writable
	waits      bool   // an event is wanted when it is writable (SOCK_NOSPACE)
	edge       bool   // epoll has an event
	sent       []byte
	shut       bool
	closed     string
	prompt     bool // sends small packets at once
}

const (
	modelClient = 0
	modelServer = 1
	modelPipes  = 1 << 20 // so that none is a descriptor of this process
)

func (m *model) choose(most int, what string) int { return rapid.IntRange(1, most).Draw(m.t, what) }

// readable returns how many bytes a read gets at most.
func (s *modelSocket) readable() int {
	at := len(s.received) - len(s.in)
	if s.mark > at {
		return s.mark - at
	}
	return len(s.in)
}

func (s *modelSocket) take(n int) []byte {
	b := s.in[:n]
	s.in = s.in[n:]
	return b
}

func (m *model) read(fd int, b []byte) (int, syscall.Errno) {
	s := m.sockets[fd]
	switch {
	case s.reset:
		return 0, unix.ECONNRESET
	case len(s.in) > 0:
		return copy(b, s.take(min(len(b), s.readable()))), 0
	case s.eof:
		return 0, 0
	}
	return 0, unix.EAGAIN
}

func (m *model) write(fd int, b []byte) (int, syscall.Errno) {
	s := m.sockets[fd]
	switch {
	case s.reset:
		return 0, unix.ECONNRESET
	case s.room == 0:
		s.waits = true
		return 0, unix.EAGAIN
	}
	if len(s.sent) > 0 && !s.prompt {
		m.t.Fatal("a small packet waits for an acknowledgement")
	}
	n := m.choose(min(len(b), s.room), "written")
	s.room -= n
	s.sent = append(s.sent, b[:n]...)
	return n, 0
}

func (m *model) splice(from, to, n int) (int, syscall.Errno) {
	if pipe := m.pipes[to]; pipe != nil {
		s := m.sockets[from]
		switch {
		case s.reset:
			return 0, unix.ECONNRESET
		case len(s.in) > 0:
			got := s.take(m.choose(min(n, s.readable()), "spliced in"))
			*pipe = append(*pipe, got...)
			return len(got), 0
		case s.eof:
			return 0, 0
		}
		return 0, unix.EAGAIN
	}
	pipe := m.pipes[from]
	got, errno := m.write(to, (*pipe)[:min(n, len(*pipe))])
	*pipe = (*pipe)[got:]
	return got, errno
}

func (m *model) writable(fd int) bool {
	s := m.sockets[fd]
	s.waits = s.waits || s.room < s.enough && !s.reset
	return s.room >= s.enough || s.reset
}

func (m *model) sendAtOnce(fd int) { m.sockets[fd].prompt = true }

func (m *model) keepUrgent(int) {}

func (m *model) buffer(int, int) int     { return 0 }
func (m *model) setBuffer(int, int, int) {}
func (m *model) clampWindow(int, int)    {}
func (m *model) unread(int) int          { return 0 }
func (m *model) unsent(int) int          { return 0 }

func (m *model) failed(fd int) bool    { return m.sockets[fd].reset }
func (m *model) shutdown(fd int) error { m.sockets[fd].shut = true; return nil }
func (m *model) close(fd int)          { m.sockets[fd].closed = "closed" }
func (m *model) reset(fd int)          { m.sockets[fd].closed = "reset" }

// events returns what epoll reports of a socket now. Asking wants an event when there is room, as in Linux, or not:
// the engine must not depend on that.
func (m *model) events(s *modelSocket) (mask uint32) {
	if s.room >= s.enough {
		mask |= unix.EPOLLOUT
	}
	if len(s.in) > 0 || s.eof || s.reset {
		mask |= unix.EPOLLIN
	}
	if s.eof {
		mask |= unix.EPOLLRDHUP
	}
	if s.mark > len(s.received)-len(s.in) {
		mask |= unix.EPOLLPRI
	}
	if s.reset {
		mask |= unix.EPOLLERR | unix.EPOLLHUP
	}
	return mask
}

// give makes room for bytes to send.
func (s *modelSocket) give(n int) {
	s.room += n
	if s.waits && s.room >= s.enough {
		s.waits, s.edge = false, true
	}
}

// moving is a loop with one open pair between two sockets of the model.
type moving struct {
	*model
	l      *loop
	pair   *pair
	others *loop // has the memory that the rest of the engine uses
}

func newMoving(t *rapid.T) *moving {
	m := &moving{model: &model{t: t, sockets: make(map[int]*modelSocket), pipes: make(map[int]*[]byte)}}
	e := &Engine{config: Config{Budget: NewBudget(1<<20, 1)}}
	m.l = &loop{
		engine: e, sockets: m.model, epoll: -1, wake: -1, spare: -1, buffer: make([]byte, chunkMost), turn: 40 << 10,
		due: deadline.New[*pair](nil), handshakes: deadline.New[*handshake](nil),
	}
	m.others = &loop{}
	e.loops = []*loop{m.l, m.others}
	e.config.Budget.add(e)
	m.l.pipes = pipes{size: 64 << 10, made: pipesMost}
	for i := range rapid.IntRange(0, 2).Draw(t, "pipes") {
		one, content := &pipe{out: modelPipes + 2*i, in: modelPipes + 2*i + 1}, new([]byte)
		m.pipes[one.out], m.pipes[one.in] = content, content
		m.l.pipes.free = append(m.l.pipes.free, one)
	}
	m.pair = &pair{}
	m.l.pairs, m.l.ends = 1, make([]*end, 2)
	for fd, e := range map[int]*end{modelClient: &m.pair.client, modelServer: &m.pair.server} {
		*e = end{pair: m.pair, fd: int32(fd), chunk: chunkLeast}
		m.sockets[fd] = &modelSocket{}
		m.l.ends[fd] = e
	}
	for _, fd := range []int{modelClient, modelServer} {
		s := m.sockets[fd]
		s.enough = rapid.IntRange(1, 40<<10).Draw(t, "enough")
		s.room = rapid.IntRange(0, 64<<10).Draw(t, "room")
		if rapid.Bool().Draw(t, "MPTCP") {
			m.l.ends[fd].is |= isMPTCP
		} else {
			m.l.ends[fd].is |= isTCP
		}
	}
	return m
}

func (m *moving) anySocket() (int, *modelSocket) {
	fd := rapid.SampledFrom([]int{modelClient, modelServer}).Draw(m.t, "socket")
	return fd, m.sockets[fd]
}

// arrive has n bytes arrive, or as many as the test can compare.
func (m *moving) arrive(s *modelSocket, n int) {
	if s.eof || s.reset {
		return
	}
	for range n {
		b := byte(len(s.received) * 7 >> 3)
		s.in, s.received = append(s.in, b), append(s.received, b)
	}
	s.edge = true
}

// deliver gives the loop an event that epoll holds. Linux drops events that no longer apply.
func (m *moving) deliver(fd int, s *modelSocket) {
	if !s.edge {
		return
	}
	s.edge = false
	if mask := m.events(s); mask != 0 && s.closed == "" {
		m.l.event(fd, 0, mask)
	}
}

// rest delivers all events and makes the loop take all its turns.
func (m *moving) rest() {
	for range 10_000 {
		if len(m.l.ready) == 0 && !m.sockets[modelClient].edge && !m.sockets[modelServer].edge {
			return
		}
		m.deliver(modelClient, m.sockets[modelClient])
		m.deliver(modelServer, m.sockets[modelServer])
		m.l.moveReady()
	}
	m.t.Fatal("the loop never rests")
}

// check checks a loop for which there is no event: whatever waits must wait for room at the other end, and an event
// must report that.
func (m *moving) check() {
	waiting := 0
	for _, e := range []*end{&m.pair.client, &m.pair.server} {
		if m.pair.closed {
			break
		}
		from, to := m.sockets[int(e.fd)], m.sockets[int(e.peer().fd)]
		waiting += e.waits()
		switch {
		case from.reset && e.waits() == 0:
			m.t.Fatal("a reset was not passed on")
		case (e.waits() > 0 || len(from.in) > 0) && !to.waits:
			m.t.Fatalf("%d bytes wait and %d are unread, the other end has room for %d, and no event is wanted", e.waits(), len(from.in), to.room)
		case e.waits() == 0 && len(from.in) == 0 && from.eof && !to.shut && !to.waits:
			m.t.Fatal("the end of a stream was not passed on")
		}
		if !bytes.HasPrefix(from.received, to.sent) {
			m.t.Fatalf("of %d bytes that arrived, %d others were sent", len(from.received), len(to.sent))
		}
	}
	if got := m.l.waiting.Load(); got != int64(waiting) {
		m.t.Fatalf("%d bytes wait, %d are counted", waiting, got)
	}
}

// Whatever the order in which bytes, room and events come, and whatever Linux makes of a call: no byte waits for which
// the other end has room, unless an event is to come. In the end all bytes have arrived in their order, and both ends
// have been passed on.
func TestNothingWaitsForNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMoving(t)
		l := m.l
		l.move(&m.pair.client) // as join does
		l.move(&m.pair.server)
		t.Repeat(map[string]func(*rapid.T){
			"bytes": func(t *rapid.T) {
				_, s := m.anySocket()
				m.arrive(s, rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 100<<10)).Draw(t, "bytes"))
			},
			"marked bytes": func(t *rapid.T) {
				_, s := m.anySocket()
				m.arrive(s, 10)
				s.mark = len(s.received)
				m.arrive(s, 10)
			},
			"the end": func(*rapid.T) {
				_, s := m.anySocket()
				s.eof, s.edge = true, true
			},
			"room": func(t *rapid.T) {
				_, s := m.anySocket()
				s.give(rapid.IntRange(1, 60<<10).Draw(t, "room"))
			},
			"an event": func(*rapid.T) { m.deliver(m.anySocket()) },
			"an event that means nothing": func(t *rapid.T) {
				fd, _ := m.anySocket()
				if !m.pair.closed {
					m.l.event(fd, 0, rapid.Uint32().Draw(t, "events")&^unix.EPOLLRDHUP)
				}
			},
			"a turn": func(*rapid.T) { l.moveReady() },
			"memory": func(t *rapid.T) {
				m.others.waiting.Store(rapid.SampledFrom([]int64{0, 2 << 20}).Draw(t, "used by others"))
			},
			"rest": func(*rapid.T) { m.rest(); m.check() },
		})
		m.rest()
		m.check()
		ends := []*modelSocket{m.sockets[modelClient], m.sockets[modelServer]}
		if rapid.IntRange(0, 9).Draw(t, "reset") == 0 && !m.pair.closed {
			_, s := m.anySocket()
			s.reset, s.edge = true, true
			for range 100 { // what was read before it goes first
				m.rest()
				m.check()
				ends[0].give(50 << 10)
				ends[1].give(50 << 10)
			}
			// If both had ended their sending, both streams are complete.
			if how := ends[0].closed; !m.pair.closed || how != ends[1].closed || how != "reset" && (!ends[0].eof || !ends[1].eof) {
				t.Fatalf("after a reset: %q, %q", ends[0].closed, ends[1].closed)
			}
			return
		}
		for _, s := range ends {
			if !s.eof {
				s.eof, s.edge = true, true
			}
		}
		for range 1000 {
			m.rest()
			m.check()
			if m.pair.closed {
				break
			}
			for _, s := range ends {
				s.give(50 << 10)
			}
		}
		for i, s := range ends {
			if other := ends[1-i]; s.closed != "closed" || !bytes.Equal(s.sent, other.received) {
				t.Fatalf("end %d is %q, and %d bytes of %d were sent", i, s.closed, len(s.sent), len(other.received))
			}
		}
		if l.waiting.Load() != 0 || slices.ContainsFunc(l.ready, func(e *end) bool { return !e.pair.closed }) {
			t.Fatal(fmt.Sprint("left behind: ", l.waiting.Load(), " bytes, ", len(l.ready), " ends"))
		}
	})
}
