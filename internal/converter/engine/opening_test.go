package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// script is a front with an opening made of two functions.
type script struct {
	read    func(b []byte) Step
	dialled func(Result) Step
}

func (s script) Open(Accepted) (Opening, error) { return s, nil }
func (s script) Read(b []byte) Step             { return s.read(b) }
func (s script) Dialled(r Result) Step          { return s.dialled(r) }

// inTurn dials one way after another until one connects, and notes how each ended.
func inTurn(ways []*Dial, results *[]Result) script {
	return script{
		read: func([]byte) Step { return Step{Dial: ways[0]} },
		dialled: func(r Result) Step {
			if *results = append(*results, r); r.Errno == 0 {
				return Step{}
			}
			return Step{Dial: ways[len(*results)]}
		},
	}
}

// nobody returns an address at which nobody listens.
func nobody(t *testing.T) netip.AddrPort {
	t.Helper()
	l := listen(t, false)
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String())
}

// silent returns an address at which connections are accepted and nothing is sent.
func silent(t *testing.T) netip.AddrPort {
	t.Helper()
	l := listen(t, true)
	t.Cleanup(func() { l.Close() })
	return netip.MustParseAddrPort(l.Addr().String())
}

// An opening tries one way after another. The bytes that the client sends meanwhile reach the last one.
func TestTriesAnotherWay(t *testing.T) {
	answer := func([]byte) (int, bool, syscall.Errno) { return 0, false, 0 }
	refuse := func([]byte) (int, bool, syscall.Errno) { return 0, false, syscall.EACCES }
	to := serve(t, true, echo)
	speaks := serve(t, false, func(c *net.TCPConn) { _, _ = c.Write([]byte("no")); _, _ = c.Read(make([]byte, 1)) })
	ways := []*Dial{
		{To: nobody(t)},
		{To: nobody(t), MPTCP: true},
		{To: silent(t), MPTCP: true, Await: answer, Timeout: 50 * time.Millisecond},
		{To: speaks, MPTCP: true, Await: refuse, Timeout: 10 * time.Second},
		{To: to, MPTCP: true},
	}
	var results []Result
	e, at := start(t, Config{Loops: 1, Front: inTurn(ways, &results)}, false)
	c := dial(t, at, false)
	_, _ = c.Write([]byte("data"))
	_ = c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != "data" {
		t.Errorf("%q, %v", b, err)
	}
	eventually(t, "it has ended", func() bool { return e.Counters().Pairs == 0 })
	want := []Result{
		{Errno: syscall.ECONNREFUSED},
		{Errno: syscall.ECONNREFUSED},
		{Errno: syscall.ETIMEDOUT, Connected: true, MPTCP: true},
		{Errno: syscall.EACCES, Connected: true, Plain: true},
		{Connected: true, MPTCP: true},
	}
	for i, r := range results {
		if r.Connected && r.Handshake <= 0 || i == 2 && r.Answer < 40*time.Millisecond {
			t.Errorf("%d: after %v and %v", i, r.Handshake, r.Answer)
		}
		if r.Handshake, r.Answer = 0, 0; r != want[i] {
			t.Errorf("%d: %+v, want %+v", i, r, want[i])
		}
	}
	if len(results) != len(want) {
		t.Errorf("%d results", len(results))
	}
}

// blackhole returns the address of a listener whose queue is full, so that SYNs stay unanswered.
func blackhole(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(sa.(*syscall.SockaddrInet4).Port))
	dial(t, to, false)
	return to
}

// A connection whose client resets it is given up while its server does not answer yet.
func TestClientGivesUp(t *testing.T) {
	to := blackhole(t)
	for _, mptcp := range []bool{false, true} {
		var dialled atomic.Int64
		e, at := start(t, Config{Front: script{
			read:    func([]byte) Step { return Step{Dial: &Dial{To: to}} },
			dialled: func(Result) Step { dialled.Add(1); return Step{} },
		}}, mptcp)
		c := dial(t, at, mptcp)
		eventually(t, "it is dialled", func() bool { return e.Counters().Pairs == 1 })
		_ = c.SetLinger(0)
		_ = c.Close()
		eventually(t, "it is given up", func() bool { return e.Counters().Pairs == 0 })
		if dialled.Load() != 0 {
			t.Error("connecting has ended first")
		}
	}
}

// Connecting to an address that does not answer ends with the Dial's timeout.
func TestConnectingTakesTooLong(t *testing.T) {
	to := blackhole(t)
	results := make(chan Result, 1)
	_, at := start(t, Config{Front: script{
		read:    func([]byte) Step { return Step{Dial: &Dial{To: to, MPTCP: true, Timeout: 100 * time.Millisecond}} },
		dialled: func(r Result) Step { results <- r; return Step{} },
	}}, false)
	isReset(t, at)
	if r := <-results; r != (Result{Errno: syscall.ETIMEDOUT}) {
		t.Errorf("%+v", r)
	}
}

// A front may need time to find out what is next. Others are served meanwhile.
func TestLater(t *testing.T) {
	to := serve(t, false, echo)
	proceed := make(chan struct{})
	var opened atomic.Int64
	e, at := start(t, Config{Loops: 1, Front: script{
		read: func(b []byte) Step {
			switch {
			case len(b) == 0:
				return Step{}
			case b[0] == 'q':
				return Step{Dial: &Dial{To: to}}
			}
			opened.Add(1)
			return Step{Used: 1, Later: func(next func(Step)) {
				go func() {
					<-proceed
					next(Step{Dial: &Dial{To: to}})
				}()
			}}
		},
		dialled: func(Result) Step { return Step{} },
	}}, false)
	slow, gone, quick := dial(t, at, false), dial(t, at, false), dial(t, at, false)
	_, _ = slow.Write([]byte("s1"))
	_, _ = gone.Write([]byte("s"))
	eventually(t, "two wait", func() bool { return opened.Load() == 2 })
	_, _ = slow.Write([]byte("2"))
	gone.Close()
	_, _ = quick.Write([]byte("quick"))
	_ = quick.CloseWrite()
	if b, err := io.ReadAll(quick); err != nil || string(b) != "quick" {
		t.Errorf("%q, %v", b, err)
	}
	close(proceed)
	_ = slow.CloseWrite()
	if b, err := io.ReadAll(slow); err != nil || string(b) != "12" {
		t.Errorf("%q, %v", b, err)
	}
	eventually(t, "all pairs end", func() bool { return e.Counters().Pairs == 0 })
}

// isReset demands that a connection to an address is reset. The reset may come before Dial has returned.
func isReset(t *testing.T, to netip.AddrPort) {
	t.Helper()
	c, err := net.Dial("tcp", to.String())
	if err == nil {
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v, want a reset", err)
	}
}

// A Step that comes after the engine has ended, or after the connection's time limit, does no harm.
func TestTooLate(t *testing.T) {
	late := make(chan func(Step), 1)
	var ended func(Step)
	t.Run("engine", func(t *testing.T) {
		e, at := start(t, Config{OpeningTimeout: 50 * time.Millisecond, Front: script{
			read: func([]byte) Step { return Step{Later: func(next func(Step)) { late <- next }} },
		}}, false)
		isReset(t, at)
		ended = <-late
		ended(Step{Close: true})
		if c, err := net.Dial("tcp", at.String()); err == nil { // else its time was up before Dial had returned
			defer c.Close()
		}
		ended = <-late
		if n := e.Counters().Accepted; n != 2 {
			t.Errorf("%d accepted", n)
		}
	})
	ended(Step{Close: true})
}

// The last reply reaches a client that has sent more than was read.
func TestReplyBeforeClose(t *testing.T) {
	e, at := start(t, Config{Front: script{read: func(b []byte) Step {
		if len(b) == 0 {
			return Step{}
		}
		return Step{Reply: []byte("no"), Close: true}
	}}}, false)
	c := dial(t, at, false)
	for range 100 {
		_, _ = c.Write(bytes.Repeat([]byte("x"), 10_000))
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "no" {
		t.Errorf("%q, %v", b, err)
	}
	gone := dial(t, at, false)
	_, _ = gone.Write([]byte("x"))
	_, _ = gone.Read(make([]byte, 2))
	_ = gone.SetLinger(0)
	_ = gone.Close()
	eventually(t, "the engine waits no longer for the clients", func() bool { return e.Counters().Pairs == 0 })
	if n := e.Counters(); n.Refused != 2 {
		t.Errorf("%d refused, want 2", n.Refused)
	}
}

// A connection can be made from an address that is not this host's.
func TestCallsFromAnotherAddress(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("IP_TRANSPARENT needs root")
	}
	peers := make(chan string, 1)
	to := serve(t, false, func(c *net.TCPConn) { peers <- c.RemoteAddr().(*net.TCPAddr).IP.String() })
	_, at := start(t, Config{Front: script{
		read: func([]byte) Step {
			return Step{Dial: &Dial{To: to, From: netip.MustParseAddrPort("127.3.2.1:0"), MPTCP: true}}
		},
		dialled: func(Result) Step { return Step{} },
	}}, false)
	dial(t, at, false)
	if peer := <-peers; peer != "127.3.2.1" {
		t.Errorf("the server sees %s", peer)
	}
}

// A connection can be made from one of this host's addresses. If the host lacks the address, it fails: it is made from
// no other.
func TestCallsFromOwnAddress(t *testing.T) {
	peers := make(chan string, 2)
	to := serve(t, true, func(c *net.TCPConn) { peers <- c.RemoteAddr().(*net.TCPAddr).IP.String() })
	failed := make(chan syscall.Errno, 1)
	for _, mptcp := range []bool{true, false} {
		_, at := start(t, Config{Front: script{
			read: func([]byte) Step {
				return Step{Dial: &Dial{To: to, Local: netip.MustParseAddr("127.3.2.1"), MPTCP: mptcp}}
			},
			dialled: func(Result) Step { return Step{} },
		}}, false)
		dial(t, at, false)
		if peer := <-peers; peer != "127.3.2.1" {
			t.Errorf("the server sees %s", peer)
		}
	}
	_, at := start(t, Config{Front: script{
		read: func([]byte) Step {
			return Step{Dial: &Dial{To: to, Local: netip.MustParseAddr("192.0.2.99"), MPTCP: true}}
		},
		dialled: func(r Result) Step { failed <- r.Errno; return Step{Close: true} },
	}}, false)
	dial(t, at, false)
	if errno := <-failed; errno != syscall.EADDRNOTAVAIL || len(peers) > 0 {
		t.Errorf("from an address that the host lacks: %v, and the server has %d connections", errno, len(peers))
	}
}

// A Dial with an EarlyTimeout sends the client's bytes before it is answered. The next Dial sends them again, and each
// byte reaches the last server once.
func TestEarly(t *testing.T) {
	const greeting = "greeting "
	long := strings.Repeat("0123456789", 2000)
	for name, c := range map[string]struct {
		said  string
		early string // of it, what comes before the answer
	}{
		"nothing":            {"", ""},
		"a request":          {"request", "request"},
		"more than is early": {long, long[:earlyMost]},
	} {
		t.Run(name, func(t *testing.T) {
			hold := make(chan struct{})
			slow := serve(t, false, func(c *net.TCPConn) { <-hold; _, _ = c.Write([]byte("no")) })
			greeted := func(conn *net.TCPConn) bool {
				b := make([]byte, len(greeting)+len(c.early))
				_, err := io.ReadFull(conn, b)
				if err != nil || string(b) != greeting+c.early {
					t.Errorf("%q, %v before the answer", b, err)
				}
				return err == nil
			}
			ends := serve(t, true, func(conn *net.TCPConn) { greeted(conn) })
			answers := serve(t, true, func(conn *net.TCPConn) {
				if greeted(conn) {
					_, _ = conn.Write([]byte("ok"))
					echo(conn)
				}
			})
			await := func(b []byte) (int, bool, syscall.Errno) {
				if b[0] == 'n' {
					return 0, false, syscall.EACCES
				}
				return 2, len(b) >= 2, 0
			}
			early := Dial{MPTCP: true, Greeting: []byte(greeting), Await: await, Timeout: 10 * time.Second, EarlyTimeout: 10 * time.Second}
			ways := []*Dial{{To: slow, Await: await}, new(early), new(early)}
			ways[1].To, ways[2].To = ends, answers
			var results []Result
			e, at := start(t, Config{Loops: 1, Front: inTurn(ways, &results)}, false)
			conn := dial(t, at, false)
			_, _ = conn.Write([]byte(c.said))
			close(hold)
			_ = conn.CloseWrite()
			if b, err := io.ReadAll(conn); err != nil || string(b) != c.said[len(c.early):] {
				t.Errorf("%d bytes come back, %v", len(b), err)
			}
			eventually(t, "it has ended", func() bool { return e.Counters().Pairs == 0 })
			for i, want := range []Result{
				{Errno: syscall.EACCES, Connected: true},
				{Errno: syscall.ECONNRESET, Connected: true, Early: c.early != ""},
				{Connected: true, MPTCP: true, Early: c.early != ""},
			} {
				if i >= len(results) || results[i].Errno != want.Errno || results[i].Early != want.Early {
					t.Errorf("%d: %+v, want %+v", i, results, want)
				}
			}
		})
	}
}

// Bytes that were sent early give the other side more time, and no other way does.
func TestEarlyTimeout(t *testing.T) {
	await := func([]byte) (int, bool, syscall.Errno) { return 0, false, 0 }
	for said, want := range map[string]time.Duration{"": 50 * time.Millisecond, "request": 300 * time.Millisecond} {
		results := make(chan Result, 1)
		d := &Dial{To: silent(t), MPTCP: true, Greeting: []byte("hello"), Await: await, Timeout: 50 * time.Millisecond, EarlyTimeout: 300 * time.Millisecond}
		_, at := start(t, Config{Front: script{
			read: func(b []byte) Step {
				if len(b) < len(said) {
					return Step{}
				}
				return Step{Dial: d}
			},
			dialled: func(r Result) Step { results <- r; return Step{} },
		}}, false)
		began := time.Now()
		c := dial(t, at, false)
		_, _ = c.Write([]byte(said))
		r := <-results
		if took := time.Since(began); r.Errno != syscall.ETIMEDOUT || took < want || r.Early != (said != "") {
			t.Errorf("%q: %+v after %v, want a timeout after %v", said, r, took, want)
		}
	}
}

// witnessed is a front for one server that notes whether it said anything.
type witnessed struct {
	direct
	spoke chan bool
}

func (l *witnessed) Open(Accepted) (Opening, error) { return l, nil }
func (l *witnessed) Spoke(spoke bool)               { l.spoke <- spoke }

// An opening learns whether the server says anything before it ends the connection.
func TestWitness(t *testing.T) {
	reset := func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() }
	untilEnd := func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c); _ = c.Close() }
	for name, x := range map[string]struct {
		server, client func(*net.TCPConn)
		calls          string
	}{
		"ends":              {func(c *net.TCPConn) { _ = c.Close() }, untilEnd, "false"},
		"resets":            {func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1)); reset(c) }, func(c *net.TCPConn) { _, _ = c.Write([]byte("hello")); untilEnd(c) }, "false"},
		"speaks":            {func(c *net.TCPConn) { _, _ = c.Write([]byte("a")); _ = c.Close() }, untilEnd, "true"},
		"speaks, resets":    {func(c *net.TCPConn) { _, _ = c.Write([]byte("a")); _, _ = c.Read(make([]byte, 1)); reset(c) }, func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1)); _, _ = c.Write([]byte("b")); untilEnd(c) }, "true"},
		"client ends first": {untilEnd, func(c *net.TCPConn) { _ = c.CloseWrite(); untilEnd(c) }, ""},
		"client resets":     {untilEnd, reset, ""},
	} {
		for _, mptcp := range []bool{false, true} {
			l := &witnessed{spoke: make(chan bool, 9)}
			l.f = toServer{server: serve(t, mptcp, x.server), mptcp: mptcp}
			e, at := start(t, Config{Loops: 1, Front: l}, false)
			x.client(dial(t, at, false))
			eventually(t, "the pair has ended", func() bool { return e.Counters().Accepted == 1 && e.Counters().Pairs == 0 })
			var calls []string
			for len(l.spoke) > 0 {
				calls = append(calls, fmt.Sprint(<-l.spoke))
			}
			if got := strings.Join(calls, " "); got != x.calls {
				t.Errorf("%s, MPTCP %t: %q, want %q", name, mptcp, got, x.calls)
			}
		}
	}
}
