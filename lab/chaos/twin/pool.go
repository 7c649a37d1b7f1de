package twin

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/testbed"
)

// Pair is a connection with MPTCP and its twin without.
type Pair struct{ MPTCP, Plain *Conn }

func (p Pair) both() []*Conn { return []*Conn{p.MPTCP, p.Plain} }

// grace is the time for which a connection goes on after its twin has ended. It shows whether the connection
// survives what its twin did not.
const grace = 10 * time.Second

// Pool is the traffic of one world.
type Pool struct {
	client    *testbed.Host
	entrance  Entrance
	server    netip.Addr
	listeners []net.Listener
	cancel    context.CancelFunc
	running   sync.WaitGroup

	numbers atomic.Uint64
	strays  atomic.Int64 // connections at the server that none of ours opened

	mu      sync.Mutex
	conns   map[uint64]*Conn
	pairs   []Pair
	renewed chan struct{} // closed and replaced: all streams begin a new pair
	stopped chan struct{} // closed: no stream begins another pair
}

// Entrance is the place at which converted streams begin.
type Entrance struct {
	Host *testbed.Host
	// Proxy is the address of the SOCKS5 proxy for the host's programs. If it is zero, the gateway that forwards the host's
	// packets takes the connections.
	Proxy netip.AddrPort
}

// Start starts all streams from the client to the server. Close ends them.
func Start(ctx context.Context, client, server *testbed.Host, entrance Entrance, streams []plan.Stream) (*Pool, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &Pool{
		client: client, entrance: entrance, server: server.Addr(), cancel: cancel,
		conns: map[uint64]*Conn{}, renewed: make(chan struct{}), stopped: make(chan struct{}),
	}
	mptcp := map[uint16]bool{} // of each port
	for _, s := range streams {
		mptcp[s.Port] = !s.Converted
		if s.Converted {
			mptcp[TwinPort(s)] = false
		}
	}
	for port, mptcp := range mptcp {
		l, err := listen(server, port, mptcp)
		if err != nil {
			p.Close()
			return nil, err
		}
		p.listeners = append(p.listeners, l)
		p.running.Go(func() { p.accept(l) })
	}
	for _, s := range streams {
		p.running.Go(func() { p.stream(ctx, s) })
	}
	return p, nil
}

// Close ends everything at once.
func (p *Pool) Close() {
	p.Stop()
	p.cancel()
	for _, l := range p.listeners {
		l.Close()
	}
	for _, pair := range p.Pairs() {
		for _, c := range pair.both() {
			c.Abort()
			<-c.Ended()
		}
	}
	p.running.Wait()
}

// Stop ends all streams in an orderly way: each end first sends its remaining data.
func (p *Pool) Stop() {
	p.mu.Lock()
	select {
	case <-p.stopped:
	default:
		close(p.stopped)
	}
	p.mu.Unlock()
	for _, pair := range p.Pairs() {
		pair.MPTCP.Stop()
		pair.Plain.Stop()
	}
}

// Renew starts a new pair of connections in every stream, beside the present one. No plain connection survives
// a change of the client's address.
func (p *Pool) Renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.renewed)
	p.renewed = make(chan struct{})
}

// Pairs returns all pairs there were.
func (p *Pool) Pairs() []Pair {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Pair(nil), p.pairs...)
}

// stream opens one pair of connections after the other.
func (p *Pool) stream(ctx context.Context, s plan.Stream) {
	for {
		p.mu.Lock()
		renewed := p.renewed
		p.mu.Unlock()
		pair, ok := p.begin(ctx, s)
		if !ok {
			return
		}
		var life <-chan time.Time
		if s.Life > 0 {
			life = time.After(s.Life.Std())
		}
		select {
		case <-life:
			pair.MPTCP.Stop()
			pair.Plain.Stop()
		case <-pair.MPTCP.Ended():
			p.outlive(ctx, pair)
		case <-pair.Plain.Ended():
			p.outlive(ctx, pair)
		case <-renewed:
			p.outlive(ctx, pair)
		case <-p.stopped:
			return
		case <-ctx.Done():
			return
		}
	}
}

// outlive ends a pair after the grace time, because one of its connections has ended.
func (p *Pool) outlive(ctx context.Context, pair Pair) {
	p.running.Go(func() {
		select {
		case <-time.After(grace):
		case <-ctx.Done():
		}
		pair.MPTCP.Stop()
		pair.Plain.Stop()
	})
	select { // a server that refuses everything is not asked without a pause
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
	}
}

// begin opens a pair. It returns false if the pool is to stop.
func (p *Pool) begin(ctx context.Context, s plan.Stream) (Pair, bool) {
	pair := Pair{MPTCP: newConn(p.numbers.Add(1), s, true), Plain: newConn(p.numbers.Add(1), s, false)}
	p.mu.Lock()
	select {
	case <-p.stopped:
		p.mu.Unlock()
		return Pair{}, false
	default:
	}
	p.pairs = append(p.pairs, pair)
	for _, c := range pair.both() {
		p.conns[c.id] = c
		c.run(ctx, func(ctx context.Context) (*socket, error) { return p.connect(ctx, c) })
	}
	p.mu.Unlock()
	return pair, true
}

// TwinPort returns the port of a converted stream's twins, which must not be converted.
func TwinPort(s plan.Stream) uint16 { return s.Port + 1 }

// connect opens the client's end of a connection.
func (p *Pool) connect(ctx context.Context, c *Conn) (*socket, error) {
	to := netip.AddrPortFrom(p.server, c.stream.Port)
	switch {
	case !c.stream.Converted:
		return dial(ctx, p.client, to, c.mptcp)
	case !c.mptcp:
		return dial(ctx, p.entrance.Host, netip.AddrPortFrom(p.server, TwinPort(c.stream)), false)
	case p.entrance.Proxy.IsValid():
		return dialByProxy(ctx, p.entrance.Host, p.entrance.Proxy, to)
	default:
		return dial(ctx, p.entrance.Host, to, false)
	}
}

// accept accepts connections and hands each to the Conn that opened it.
func (p *Pool) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go p.greet(conn.(*net.TCPConn))
	}
}

// greetLimit limits the time until a connection has sent its number.
const greetLimit = 30 * time.Second

func (p *Pool) greet(conn *net.TCPConn) {
	head := make([]byte, len(magic)+8)
	_ = conn.SetReadDeadline(time.Now().Add(greetLimit)) // it may just have ended
	_, err := io.ReadFull(conn, head)
	_ = conn.SetReadDeadline(time.Time{})
	c := p.owner(head)
	if err != nil || c == nil {
		p.strays.Add(1)
		conn.Close()
		return
	}
	if from, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		c.mu.Lock()
		c.seen = from.AddrPort()
		c.mu.Unlock()
	}
	select {
	case c.accepted <- conn:
	default: // a second connection with the same number
		p.strays.Add(1)
		conn.Close()
	}
}

func (p *Pool) owner(head []byte) *Conn {
	number, ours := bytes.CutPrefix(head, magic)
	if !ours {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[binary.BigEndian.Uint64(number)]
}
