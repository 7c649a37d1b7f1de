package engine

import (
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The shares of all ends are no more than the memory together. Many ends with one mark take little from another's.
func TestShares(t *testing.T) {
	const memory = 1 << 30
	s := &shares{memory: memory, marks: make(map[uint32]account)}
	alone := s.of(1)
	s.change(1, 1000, 0)
	if got := s.of(2); got < alone/2 {
		t.Errorf("beside a mark with 1000 ends, the first end of another has %d bytes, and %d if it is alone", got, alone)
	}
	s.change(2, 3, 0)
	s.change(3, 1, 0)
	sum := 0
	for mark, a := range s.marks {
		sum += 2 * a.moving * s.of(mark)
	}
	if sum > memory || sum < memory/8 {
		t.Errorf("the shares are %d bytes together, of %d", sum, memory)
	}
	s.change(1, 1<<20, 0)
	if got := s.of(1); got != bufferLeast || !s.isFull(1) || s.isFull(2) {
		t.Errorf("the share of very many is %d bytes; full: %v, that of others %v", got, s.isFull(1), s.isFull(2))
	}
	for mark, a := range maps.Clone(s.marks) {
		s.change(mark, -a.moving, 0)
	}
	if len(s.marks) > 0 || s.of(4) != alone {
		t.Errorf("left: %v, a share of %d", s.marks, s.of(4))
	}
}

// Ends that stop one after another, each with buffers as large as its share, hold no more than the memory together,
// however many marks they have.
func TestSharesOfStoppedReaders(t *testing.T) {
	const memory = 1 << 30
	for _, marks := range []uint32{1, 2, 10, 1000} {
		s := &shares{memory: memory, marks: make(map[uint32]account)}
		for i := range uint32(5000) {
			mark := i * marks / 5000
			if s.isFull(mark) {
				continue
			}
			s.change(mark, 1, 0)
			s.change(mark, -1, int64(2*s.of(mark)))
		}
		if most := int64(memory + 5000*2*bufferLeast); s.held > most || s.held < memory/4 {
			t.Errorf("with %d marks, %d bytes are held, of %d", marks, s.held, memory)
		}
	}
}

// buffersOf is a model of two sockets' buffers.
type buffersOf struct {
	kernel
	sizes        map[[2]int]int // by descriptor and SO_RCVBUF or SO_SNDBUF
	window       int            // that of the one
	came, toSend int            // bytes in them
}

func (b *buffersOf) buffer(fd, which int) int      { return b.sizes[[2]int{fd, which}] }
func (b *buffersOf) setBuffer(fd, which, size int) { b.sizes[[2]int{fd, which}] = size }
func (b *buffersOf) clampWindow(_, bytes int)      { b.window = bytes }
func (b *buffersOf) unread(int) int                { return b.came }
func (b *buffersOf) unsent(int) int                { return b.toSend }

// The buffers of a busy end follow its share, unless it holds data. When it has moved nothing for a while, they become small.
func TestBuffersFollowShares(t *testing.T) {
	const large, small = 32 << 20, 100 << 10
	arriving, toSend := [2]int{1, unix.SO_RCVBUF}, [2]int{0, unix.SO_SNDBUF}
	b := &buffersOf{sizes: map[[2]int]int{arriving: large, toSend: small}}
	s := &shares{memory: 128 << 20, marks: make(map[uint32]account)}
	l := &loop{engine: &Engine{config: Config{Budget: &Budget{shares: s}}}, sockets: b}
	p := &pair{mark: 7}
	p.client, p.server = end{pair: p, fd: 0, is: isEmpty}, end{pair: p, fd: 1, is: isEmpty | isTCP}
	now := time.Now()
	look := func(moved int) {
		t.Helper()
		if moved > 0 {
			l.noteMoved(&p.server, moved)
		}
		now = now.Add(2 * looksEvery)
		l.lookAtBusy(now)
	}
	want := func(what string, in, out int) {
		t.Helper()
		if b.sizes[arriving] != in || b.sizes[toSend] != out {
			t.Errorf("%s: %d and %d bytes, want %d and %d", what, b.sizes[arriving], b.sizes[toSend], in, out)
		}
	}
	look(busyAfter - 1)
	if len(l.busy) > 0 || !l.looks.IsZero() {
		t.Error("an end that moved little is busy")
	}
	look(1)
	want("alone", large, small) // 128 MB, half of it left for another mark, for two buffers
	s.change(7, 31, 0)
	look(1)
	want("one of 32, at first", large, small)
	if b.window != 1<<20/4 {
		t.Errorf("at first, its window is %d", b.window)
	}
	look(1)
	want("one of 32", 1<<20, small)
	if b.window < 1<<20 {
		t.Errorf("its window is %d", b.window)
	}
	b.sizes[toSend] = large
	look(1)
	want("with another large buffer", 1<<20, 1<<20)
	s.change(7, -16, 0)
	look(1)
	want("one of 16", 2<<20, 2<<20)

	s.change(7, 16, 0)
	for what, holds := range map[string]func(n int){
		"unread bytes": func(n int) { b.came = n },
		"unsent bytes": func(n int) { b.toSend = n },
		"others":       func(n int) { p.server.rest = make([]byte, n) },
	} {
		holds(1)
		for range 2 * idleLooks {
			look(0)
		}
		want("with "+what, 2<<20, 2<<20)
		if a := s.marks[7]; a != (account{moving: 31, held: 4 << 20}) {
			t.Errorf("with %s, its mark has %+v", what, a)
		}
		holds(0)
	}
	if look(0); s.marks[7] != (account{moving: 32}) {
		t.Errorf("its mark has %+v without them", s.marks[7])
	}
	for range 2 * idleLooks {
		look(0)
	}
	want("idle", bufferKept, bufferKept)
	if len(l.busy) > 0 || !l.looks.IsZero() || s.marks[7].moving != 31 {
		t.Errorf("an idle end is among %d busy ones, of %d", len(l.busy), s.marks[7].moving)
	}
	l.noteMoved(&p.server, busyAfter)
	want("busy again", 1<<20, 1<<20)
	l.endBusy(&p.server) // as when it is closed
	if look(0); len(l.busy) > 0 || s.marks[7].moving != 31 {
		t.Errorf("a closed end is among %d busy ones, of %d", len(l.busy), s.marks[7].moving)
	}
}

// noted are the kernel's sockets, of which it notes the buffers that were looked at.
type noted struct {
	kernel
	mu      sync.Mutex
	buffers map[[2]int]bool // by descriptor and SO_RCVBUF or SO_SNDBUF
}

func (n *noted) buffer(fd, which int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.buffers[[2]int{fd, which}] = true
	return n.kernel.buffer(fd, which)
}

// sum returns the number of buffers that were noted, their sizes together, and the bytes that they hold.
func (n *noted) sum() (buffers, sizes, held int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for b := range n.buffers {
		var m [9]uint32 // SK_MEMINFO_VARS
		size := uint32(unsafe.Sizeof(m))
		_, _ = raw(unix.SYS_GETSOCKOPT, uintptr(b[0]), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&size)), 0)
		if b[1] == unix.SO_RCVBUF {
			held += int(m[0]) // SK_MEMINFO_RMEM_ALLOC
		} else {
			held += int(m[5]) // SK_MEMINFO_WMEM_QUEUED
		}
		sizes += n.kernel.buffer(b[0], b[1])
	}
	return len(n.buffers), sizes, held
}

// Many readers that were fast and stop together leave no more in the kernel's buffers than the memory for them. When they
// go on, they get the rest.
func TestStoppedReadersShareMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a buffer's size has a limit without it")
	}
	for name, c := range map[string]struct{ mptcp, uploads bool }{
		"downloads by TCP": {false, false}, "downloads by MPTCP": {true, false}, "uploads by MPTCP": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stopReaders(t, c.mptcp, c.uploads)
		})
	}
}

func stopReaders(t *testing.T, mptcp, uploads bool) {
	const readers, memory, rest = 32, 64 << 20, 2 << 20
	var stopped, ended sync.WaitGroup
	stopped.Add(readers)
	ended.Add(readers)
	stop, goOn := make(chan struct{}), make(chan struct{})
	read := func(c *net.TCPConn) {
		defer ended.Done()
		b := make([]byte, 64<<10)
		var err error
		for done := false; !done && err == nil; {
			select {
			case <-stop:
				done = true
			default:
				_, err = io.ReadFull(c, b)
			}
		}
		stopped.Done()
		<-goOn
		if err == nil {
			_, err = io.CopyN(io.Discard, c, rest)
		}
		if err != nil {
			t.Error(err)
		}
		c.Close()
	}
	write := func(c *net.TCPConn) {
		b := make([]byte, 64<<10)
		for err := error(nil); err == nil; {
			_, err = c.Write(b)
		}
	}
	clients, servers := read, write
	if uploads {
		clients, servers = write, read
	}
	budget := NewBudget(0, 1)
	budget.shares.memory = memory
	n := &noted{buffers: make(map[[2]int]bool)}
	_, at := startWith(t, Config{Front: toServer{server: serve(t, false, servers)}, Budget: budget}, mptcp, func(e *Engine) {
		for _, l := range e.loops {
			l.sockets = n
		}
	})
	var all sync.WaitGroup
	defer all.Wait()
	for range readers {
		c := dial(t, at, mptcp)
		all.Go(func() { clients(c) })
	}
	time.Sleep(3 * looksEvery) // for them to grow
	for began := time.Now(); ; time.Sleep(looksEvery / 10) {
		buffers, sizes, held := n.sum()
		// A half is for another mark. What came before the buffers became smaller must have been read.
		if buffers == 2*readers && sizes <= memory/2 && held <= memory*3/4 {
			break
		}
		if time.Since(began) > time.Minute {
			t.Errorf("after a minute, %d buffers of %d bytes hold %d, of %d", buffers, sizes, held, memory)
			break
		}
	}
	close(stop)
	stopped.Wait()
	last := 0
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		before := last
		if _, _, last = n.sum(); last > 0 && before == last {
			break
		}
		if time.Since(began) > time.Minute { // the readers go on all the same, or nothing here would end
			t.Errorf("something moves for a minute: %d bytes, and %d before", last, before)
			break
		}
	}
	if buffers, sizes, _ := n.sum(); last > memory || last < memory/16 {
		t.Errorf("stopped readers left %d bytes in %d buffers of %d, of %d", last, buffers, sizes, memory)
	}
	close(goOn)
	ended.Wait()
}

// An engine that refuses clients whose data fills the memory serves others with another mark, and these again later.
func TestRefusesFull(t *testing.T) {
	to := serve(t, false, echo)
	budget := NewBudget(0, 1)
	budget.shares.memory = 1 << 20
	_, at := start(t, Config{Front: marked{to}, Budget: budget, RefuseFull: true}, false)
	answer := func(mark byte) byte {
		c := dial(t, at, false)
		b := []byte{mark}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		return b[0]
	}
	budget.shares.change(1, 0, 1<<19)
	if got := answer(1); got != byte(unix.ENOBUFS) {
		t.Errorf("a full mark is answered %d", got)
	}
	if got := answer(0); got != 0 {
		t.Errorf("another mark is answered %d", got)
	}
	budget.shares.change(1, 0, -1<<19)
	if got := answer(1); got != 0 && got != byte(unix.EPERM) { // without root, no mark may be set
		t.Errorf("with room again, it is answered %d", got)
	}
}

// marked is a front whose clients name the mark of their connection, and are told the errno of connecting.
type marked struct{ server netip.AddrPort }

func (f marked) Open(Accepted) (Opening, error) { return f, nil }

func (f marked) Read(b []byte) Step {
	if len(b) == 0 {
		return Step{}
	}
	return Step{Used: 1, Dial: &Dial{To: f.server, Mark: uint32(b[0])}}
}

func (f marked) Dialled(r Result) Step {
	return Step{Reply: []byte{byte(r.Errno)}, Close: r.Errno != 0}
}
