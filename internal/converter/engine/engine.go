package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Front speaks with the client of each new connection until it knows which server the connection is for. Several loops
// call its methods at once.
type Front interface {
	// Open returns the state of one new connection. An error closes the connection with a reset.
	Open(Accepted) (Opening, error)
}

// Accepted is a connection that a listener has accepted.
type Accepted struct {
	Peer netip.AddrPort // the client
	// HangUp ends the connection with a reset, unless its server is known by then; see Dial.MayHangUp. It returns at
	// once, and any goroutine may call it.
	HangUp func()

	fd int
}

// Local returns the address that the client connected to; with TPROXY, the server's. Only Open may call it.
func (a Accepted) Local() (netip.AddrPort, error) { return localAddr(a.fd) }

// Mark sets the mark (SO_MARK) of the packets that the client gets. Only methods of the Opening may call it.
func (a Accepted) Mark(mark uint32) error {
	return unix.SetsockoptInt(a.fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark))
}

// Opening is the state of one connection until its server is reached. Its methods must not block.
type Opening interface {
	// Read is given the client's bytes so far. Before any have arrived, it is called once with none. b is valid during
	// the call.
	Read(b []byte) Step
	// Dialled is told how connecting to Step.Dial ended. The Step may name another server to connect to.
	// With neither Dial nor Close the connection goes on with the server that was reached, or, if none was,
	// ends with a reset.
	Dialled(Result) Step
}

// An Ender is an Opening that is told when it has ended.
type Ender interface {
	// Ended is called once, when the server is reached or the connection has ended.
	Ended()
}

// A Hearer is an Opening that sees the client's first bytes when the server is reached.
type Hearer interface {
	// Hear is called with the client's bytes, in order and after they were forwarded. The first call has the bytes that
	// came before the server was reached; there may be none. Hear reports whether it wants more. b is valid during the
	// call. Hear must not block.
	Hear(b []byte) (more bool)
}

// A Witness is an Opening that learns whether the server says anything.
type Witness interface {
	// Spoke is called at most once after the server was reached: with true when its first byte has come, or with false if
	// it ends the connection without a byte before the client ends it. Spoke must not block.
	Spoke(spoke bool)
}

// Step is the next action on an opening connection. The zero Step waits for more bytes.
type Step struct {
	Used  int    // number of bytes that belong to the opening; with Dial, the rest is the connection's data
	Reply []byte // is sent to the client
	Dial  *Dial  // is connected to
	Close bool   // ends the connection after Reply
	Reset bool   // ends the connection with a reset
	// Later is called at once, and must return without waiting. Another goroutine must later call next once, with the
	// next Step. Until then no more bytes are read. Only Read may return a Step with Later.
	Later func(next func(Step))
}

// Dial describes how to connect to a server.
type Dial struct {
	To netip.AddrPort
	// From is the address to call from, even if it is not this host's (IP_TRANSPARENT); zero: any. Without a port, a
	// free one is chosen that the address's host is unlikely to use itself.
	From netip.AddrPort
	// Local is the address of this host to call from; zero: any. If the host does not have it any more, the call fails.
	Local netip.Addr
	MPTCP bool
	// NoFallback makes the engine connect again by TCP if the server answers without MPTCP, because Linux may lose data
	// of connections that became plain TCP. The server sees one connection end at once, without a byte, and another begin.
	NoFallback bool
	Mark       uint32 // of the socket (SO_MARK); 0: none
	// Timeout bounds connecting and Await together. If it is 0, connecting lasts while the kernel tries, and Await while
	// the connection lives.
	Timeout time.Duration
	// Greeting is sent as soon as the connection is up. Await, if set, is then given the first bytes of the other side
	// until it is done; the first used of them are not the connection's data. An errno ends the connection as if
	// connecting had failed.
	Greeting []byte
	Await    func(b []byte) (used int, done bool, errno syscall.Errno)
	// FastOpen makes the engine send Greeting in the SYN (TCP Fast Open, RFC 7413) if the kernel has a cookie of To.
	// Otherwise the SYN asks for a cookie. If the SYN's data is not acknowledged, or the connection falls back to TCP,
	// the engine connects again without data in the SYN, and Timeout begins anew. Greeting may then arrive twice, and
	// also if the network duplicates the SYN.
	FastOpen bool
	// EarlyTimeout, if set, makes the engine send the client's bytes so far right after Greeting, up to four kilobytes,
	// before Await is done. If any were sent, EarlyTimeout bounds Await in place of Timeout. Another Dial sends the
	// same bytes again; see Result.Early.
	EarlyTimeout time.Duration
	// MayHangUp lets Accepted.HangUp end the connection until the server is reached.
	MayHangUp bool
}

// Result describes how connecting ended.
type Result struct {
	Errno syscall.Errno // 0: it worked
	// Connected reports that the other side accepted the connection. With an Errno, Await has failed.
	Connected bool
	MPTCP     bool // the other side speaks MPTCP on this connection
	// Plain reports that the other side does not speak MPTCP: it was offered MPTCP, and did not accept. With neither MPTCP
	// nor Plain, nothing is known, because Dial offered no MPTCP, or because SYNs were lost: then Linux repeats them without
	// the offer, and may offer MPTCP to no other server for some time.
	Plain     bool
	Local     netip.AddrPort // this host's end of the connection, if Dial.Await was set and is done
	Early     bool           // some of the client's bytes were sent before Await was done
	FastOpen  FastOpen       // how Dial.FastOpen went
	Handshake time.Duration  // until the connection was up
	Answer    time.Duration  // from then until Await was done
}

// FastOpen describes what was learned of data in the SYN.
type FastOpen int

const (
	// FastOpenUnknown: the SYN had no data, or the other side was not reached without either.
	FastOpenUnknown FastOpen = iota
	// FastOpenUnanswered: the SYN with data was not answered in time, nor were those without data that the kernel sent
	// after it.
	FastOpenUnanswered
	// FastOpenAcked: the SYN's data was acknowledged, and the connection has the protocol that Dial wanted.
	FastOpenAcked
	// FastOpenFailed: the other side was reached without data in the SYN, after the SYN's data was not acknowledged, the
	// connection fell back to TCP, or the SYN had to be sent again.
	FastOpenFailed
)

// Config holds an engine's settings.
type Config struct {
	// Listeners are listening sockets. They are made non-blocking, and stay open.
	Listeners []int
	Front     Front
	// Loops is the number of loops; 0: one for each processor.
	Loops int
	// MaxPairs bounds the engine's own connections. Others wait in the listener's queue. 0: only Budget does.
	MaxPairs int
	// Budget bounds the engine's connections and memory together with those of the process's other engines; nil: there
	// are no others.
	Budget *Budget
	// RefuseFull makes the engine refuse connections to servers, with ENOBUFS, while data of others with the same mark fills
	// its share of the kernel's memory. Without it, they have small buffers.
	RefuseFull bool
	// OpeningTimeout bounds the time in which a client says which server it wants; 0: ten seconds.
	OpeningTimeout time.Duration
	Log            *slog.Logger
}

const defaultOpening = 10 * time.Second

// Engine relays connections. New makes it.
type Engine struct {
	config Config
	loops  []*loop
	pairs  atomic.Int64
	lack   shortage

	listening sync.WaitGroup // loops that may accept connections

	waking sync.Mutex // guards closed, and each loop's next
	closed bool       // no loop is woken any more
}

// Counters describes the work of an engine.
type Counters struct {
	Pairs    int64 `json:"pairs"`    // connections that it has now
	Accepted int64 `json:"accepted"` // ever
	Refused  int64 `json:"refused"`  // whose opening failed
	Lacking  int64 `json:"lacking"`  // attempts to accept or to connect for which descriptors or memory were lacking
	Bytes    int64 `json:"bytes"`    // moved, both directions
	Waiting  int64 `json:"waiting"`  // bytes that wait for slow ends
}

// processors returns the number of processors, and makes Go use one more. If loops kept all of Go's busy, Go's monitor
// would take them from each loop that waits for events, and wake every 20 µs to do so. That would be a tenth of the
// cost of short connections.
var processors = sync.OnceValue(func() int {
	n := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(n + 1)
	return n
})

// New returns an engine that relays what comes in at the listeners once Run is called.
func New(c Config) (*Engine, error) {
	if len(c.Listeners) == 0 || c.Front == nil {
		return nil, errors.New("an engine needs a listener and a front")
	}
	if c.Loops == 0 {
		c.Loops = processors()
	}
	if c.Budget == nil {
		c.Budget = NewBudget(0, 1)
	}
	if c.OpeningTimeout == 0 {
		c.OpeningTimeout = defaultOpening
	}
	if c.Budget.most <= 0 {
		return nil, fmt.Errorf("the limit of %d descriptors leaves none for connections: raise it (ulimit -n)", descriptorLimit())
	}
	if c.MaxPairs == 0 {
		c.MaxPairs = math.MaxInt
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{config: c, lack: shortage{log: c.Log}}
	for range c.Loops {
		l, err := newLoop(e)
		if err != nil {
			e.close()
			return nil, err
		}
		e.loops = append(e.loops, l)
		e.listening.Add(1)
	}
	c.Budget.add(e)
	return e, nil
}

// Run relays connections until ctx is done. It then ends the open ones with a reset. It may be called only once.
func (e *Engine) Run(ctx context.Context) error {
	defer e.close()
	var all sync.WaitGroup
	errs := make([]error, len(e.loops))
	for i, l := range e.loops {
		all.Go(func() { errs[i] = l.run() })
	}
	stop := context.AfterFunc(ctx, func() { e.tell(stopNow) })
	defer stop()
	all.Wait()
	return errors.Join(errs...)
}

// Drain accepts no more connections. Run, which must have been called, returns once the present ones have ended. When
// Drain returns, the listeners may be closed.
func (e *Engine) Drain() {
	e.tell(drain)
	e.listening.Wait()
}

// Counters returns the sum over all loops.
func (e *Engine) Counters() Counters {
	sum := Counters{Pairs: e.pairs.Load()}
	for _, l := range e.loops {
		sum.Accepted += l.accepted.Load()
		sum.Refused += l.refused.Load()
		sum.Lacking += l.lacking.Load()
		sum.Bytes += l.moved.Load()
		sum.Waiting += l.waiting.Load()
	}
	return sum
}

// hasRoom reports whether another connection may be accepted.
func (e *Engine) hasRoom() bool {
	return e.pairs.Load() < int64(e.config.MaxPairs) && e.config.Budget.hasRoom()
}

// count adds more, which may be negative, to the number of connections.
func (e *Engine) count(more int64) {
	e.pairs.Add(more)
	e.config.Budget.pairs.Add(more)
}

func (e *Engine) tell(c command) {
	e.waking.Lock()
	defer e.waking.Unlock()
	if e.closed {
		return
	}
	for _, l := range e.loops {
		l.tell(c)
	}
}

// resume makes a loop continue an opening that waited, or end it. Any goroutine may call it.
func (e *Engine) resume(l *loop, r resumption) {
	e.waking.Lock()
	defer e.waking.Unlock()
	if !e.closed {
		l.next = append(l.next, r)
		l.tell(0)
	}
}

// resumed returns the openings that a loop has to continue or end, and clears its list.
func (e *Engine) resumed(l *loop) []resumption {
	e.waking.Lock()
	defer e.waking.Unlock()
	next := l.next
	l.next = nil
	return next
}

func (e *Engine) close() {
	e.waking.Lock()
	defer e.waking.Unlock()
	e.closed = true
	for _, l := range e.loops {
		l.close()
	}
	e.config.Budget.remove(e)
}
