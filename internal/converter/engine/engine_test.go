package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestMain(m *testing.M) {
	if server := os.Getenv(childServer); server != "" {
		if err := child(server); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(childEnds) != "" {
		if err := ends(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// toServer is a front whose clients all want one server.
type toServer struct {
	server netip.AddrPort
	mptcp  bool
}

func (f toServer) Open(Accepted) (Opening, error) { return &direct{f}, nil }

type direct struct{ f toServer }

func (d *direct) Read([]byte) Step { return Step{Dial: &Dial{To: d.f.server, MPTCP: d.f.mptcp}} }

func (d *direct) Dialled(Result) Step { return Step{} }

// serve accepts connections and handles each in a goroutine, until the test ends.
func serve(t *testing.T, mptcp bool, handle func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l := listen(t, mptcp)
	netnstest.Serve(t, l, handle)
	return netip.MustParseAddrPort(l.Addr().String())
}

func listen(t *testing.T, mptcp bool) net.Listener {
	t.Helper()
	var c net.ListenConfig
	c.SetMultipathTCP(mptcp)
	l, err := c.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// start runs an engine with the front before it, and returns where it listens.
func start(t *testing.T, c Config, mptcp bool) (*Engine, netip.AddrPort) {
	t.Helper()
	return startWith(t, c, mptcp, func(*Engine) {})
}

// startWith is start with some of the engine changed before it runs.
func startWith(t *testing.T, c Config, mptcp bool, change func(*Engine)) (*Engine, netip.AddrPort) {
	t.Helper()
	l := listen(t, mptcp)
	file, err := l.(*net.TCPListener).File() // non-blocking, as the listener is
	if err != nil {
		t.Fatal(err)
	}
	c.Listeners = []int{int(file.Fd())}
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	change(e)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		file.Close()
		l.Close()
	})
	return e, netip.MustParseAddrPort(l.Addr().String())
}

func dial(t *testing.T, to netip.AddrPort, mptcp bool) *net.TCPConn {
	t.Helper()
	var d net.Dialer
	d.SetMultipathTCP(mptcp)
	c, err := d.DialContext(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c.(*net.TCPConn)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after ten seconds: %s", what)
		}
	}
}

func echo(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.CloseWrite() }

// Megabytes arrive unchanged in both directions at once, whatever the two ends speak, from several clients
// that write pieces of any size.
func TestBytesArrive(t *testing.T) {
	for _, client := range []bool{false, true} {
		for _, server := range []bool{false, true} {
			t.Run(fmt.Sprintf("MPTCP: client %v, server %v", client, server), func(t *testing.T) {
				to := serve(t, server, echo)
				e, at := start(t, Config{Front: toServer{to, server}}, client)
				var all sync.WaitGroup
				for seed := range uint64(4) {
					c := dial(t, at, client)
					all.Go(func() { exchange(t, c, seed, 8<<20) })
				}
				all.Wait()
				eventually(t, "all pairs end", func() bool { return e.Counters().Pairs == 0 })
				if n := e.Counters(); n.Bytes != 8*8<<20 || n.Waiting != 0 || n.Accepted != 4 {
					t.Errorf("%+v", n)
				}
			})
		}
	}
}

// exchange writes n random bytes, closes its direction, and demands them back.
func exchange(t *testing.T, c *net.TCPConn, seed uint64, n int) {
	random := rand.NewChaCha8([32]byte{byte(seed)})
	sent, got := sha256.New(), sha256.New()
	go func() {
		pieces := rand.New(rand.NewPCG(seed, 1))
		for left := n; left > 0; {
			b := make([]byte, min(left, 1+pieces.IntN(200_000)))
			_, _ = random.Read(b)
			sent.Write(b)
			if _, err := c.Write(b); err != nil {
				t.Errorf("write: %v", err)
				return
			}
			left -= len(b)
		}
		if err := c.CloseWrite(); err != nil {
			t.Error(err)
		}
	}()
	back, err := io.Copy(got, c)
	if err != nil || back != int64(n) || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Errorf("%d of %d bytes came back, or others: %v", back, n, err)
	}
}

// A client that has closed its direction still receives.
func TestHalfClose(t *testing.T) {
	to := serve(t, false, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		time.Sleep(50 * time.Millisecond)
		_, _ = fmt.Fprintf(c, "%d bytes", len(b))
	})
	_, at := start(t, Config{Front: toServer{server: to}}, true)
	c := dial(t, at, true)
	_, _ = c.Write(make([]byte, 1000))
	_ = c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != "1000 bytes" {
		t.Errorf("%q, %v", b, err)
	}
}

// A reset from either side becomes one for the other.
func TestResets(t *testing.T) {
	for _, byServer := range []bool{false, true} {
		t.Run(fmt.Sprintf("by the server: %v", byServer), func(t *testing.T) {
			ended := make(chan error, 1)
			to := serve(t, false, func(c *net.TCPConn) {
				_, _ = c.Read(make([]byte, 1))
				if byServer {
					_ = c.SetLinger(0)
					return
				}
				_, err := c.Read(make([]byte, 1))
				ended <- err
			})
			e, at := start(t, Config{Front: toServer{server: to}}, false)
			c := dial(t, at, false)
			_, _ = c.Write([]byte("x"))
			if byServer {
				_, err := c.Read(make([]byte, 1))
				ended <- err
			} else {
				eventually(t, "the byte has passed", func() bool { return e.Counters().Bytes == 1 })
				_ = c.SetLinger(0)
				_ = c.Close()
			}
			if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%v, want a reset", err)
			}
		})
	}
}

// A thousand clients that do not read delay nobody: another one gets its data at once.
func TestManySlowReaders(t *testing.T) {
	const size, slow = 256 << 10, 1000
	to := serve(t, false, func(c *net.TCPConn) {
		_ = c.SetWriteBuffer(16 << 10)
		_, _ = c.Write(make([]byte, size))
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	})
	e, at := start(t, Config{Front: toServer{server: to}, Budget: NewBudget(4<<20, 1)}, false)
	for range slow {
		c := dial(t, at, false)
		_ = c.SetReadBuffer(4 << 10)
	}
	eventually(t, "all are open", func() bool { return e.Counters().Pairs == slow })
	for range 10 {
		c := dial(t, at, false)
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, c); n != size || err != nil {
			t.Errorf("%d of %d bytes, %v", n, size, err)
		}
		c.Close()
	}
	if n := e.Counters(); n.Waiting > 4<<20+2*pipeSize || n.Pairs < slow {
		t.Errorf("%d bytes wait in %d pairs", n.Waiting, n.Pairs)
	}
}

// Engines with one budget have no more connections and no more memory together than it allows.
func TestSharedBudget(t *testing.T) {
	to := serve(t, false, echo)
	b := NewBudget(0, 2)
	b.most = 2
	first, at1 := start(t, Config{Front: toServer{server: to}, Budget: b}, false)
	second, at2 := start(t, Config{Front: toServer{server: to}, Budget: b}, false)
	one, _ := dial(t, at1, false), dial(t, at2, false)
	eventually(t, "both are open", func() bool { return first.Counters().Pairs == 1 && second.Counters().Pairs == 1 })
	third := dial(t, at2, false) // by the kernel
	_, _ = third.Write([]byte("x"))
	time.Sleep(150 * time.Millisecond)
	if n := second.Counters().Pairs; n != 1 {
		t.Errorf("%d pairs", n)
	}
	first.loops[0].waiting.Add(b.memory)
	if b.hasMemory() {
		t.Error("the memory of another engine does not count")
	}
	first.loops[0].waiting.Add(-b.memory)
	one.Close()
	got := make([]byte, 1)
	if _, err := io.ReadFull(third, got); err != nil || got[0] != 'x' {
		t.Errorf("%q, %v", got, err)
	}
}

// Clients that do not read take no more memory than allowed. When they read later, they get all their data.
func TestSlowReaders(t *testing.T) {
	const size, slow = 24 << 20, 20
	to := serve(t, false, func(c *net.TCPConn) {
		_, _ = io.CopyN(c, rand.NewChaCha8([32]byte{}), size)
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	})
	e, at := start(t, Config{Front: toServer{server: to}, Budget: NewBudget(4<<20, 1), Loops: 2}, false)
	var waiting []*net.TCPConn
	for range slow {
		waiting = append(waiting, dial(t, at, false))
	}
	time.Sleep(300 * time.Millisecond)
	if n := e.Counters(); n.Waiting > 4<<20+2*pipeSize {
		t.Errorf("%d bytes wait", n.Waiting)
	}
	var all sync.WaitGroup
	for _, c := range waiting {
		all.Go(func() {
			if n, err := io.Copy(io.Discard, c); n != size || err != nil {
				t.Errorf("%d of %d bytes, %v", n, size, err)
			}
			c.Close()
		})
	}
	all.Wait()
	eventually(t, "nothing waits", func() bool { n := e.Counters(); return n.Waiting == 0 && n.Pairs == 0 })
}

// What connect() reports reaches the front.
func TestServerRefuses(t *testing.T) {
	l := listen(t, false)
	to := netip.MustParseAddrPort(l.Addr().String())
	l.Close()
	e, at := start(t, Config{Front: toServer{server: to}}, false)
	c, err := net.Dial("tcp", at.String())
	if err == nil { // else the reset came before Dial had returned
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v, want a reset", err)
	}
	eventually(t, "it is refused", func() bool { n := e.Counters(); return n.Refused == 1 && n.Pairs == 0 })
}

// speaking is a front that reads a line with a word that begins with ok or not, and answers.
type speaking struct{ server netip.AddrPort }

func (f speaking) Open(Accepted) (Opening, error) { return &talk{f.server}, nil }

type talk struct{ server netip.AddrPort }

func (s *talk) Read(b []byte) Step {
	end := bytes.IndexByte(b, '\n')
	switch {
	case end < 0:
		return Step{}
	case !bytes.HasPrefix(b, []byte("ok")):
		return Step{Reply: []byte("no\n"), Close: true}
	}
	return Step{Used: end + 1, Dial: &Dial{To: s.server, Greeting: []byte("hello\n"), Await: func(b []byte) (int, bool, syscall.Errno) {
		end := bytes.IndexByte(b, '\n')
		return end + 1, end >= 0, 0
	}}}
}

func (s *talk) Dialled(r Result) Step {
	return Step{Reply: fmt.Appendf(nil, "%d\n", r.Errno), Close: r.Errno != 0}
}

// Bytes of an opening and of data are told apart, however they arrive.
func TestOpenings(t *testing.T) {
	to := serve(t, false, func(c *net.TCPConn) {
		b := make([]byte, 6)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello\n" {
			t.Errorf("greeting %q, %v", b, err)
		}
		_, _ = c.Write([]byte("welcome\nfirst "))
		echo(c)
	})
	e, at := start(t, Config{Front: speaking{to}}, false)

	all := dial(t, at, false)
	_, _ = all.Write([]byte("ok\nsecond"))
	_ = all.CloseWrite()
	if b, err := io.ReadAll(all); err != nil || string(b) != "0\nfirst second" {
		t.Errorf("at once: %q, %v", b, err)
	}
	pieces := dial(t, at, false)
	for _, b := range []byte("okay\n") {
		_, _ = pieces.Write([]byte{b})
		time.Sleep(2 * time.Millisecond)
	}
	_ = pieces.CloseWrite()
	if b, err := io.ReadAll(pieces); err != nil || string(b) != "0\nfirst " {
		t.Errorf("in pieces: %q, %v", b, err)
	}
	refused := dial(t, at, false)
	_, _ = refused.Write([]byte("please\n"))
	if b, err := io.ReadAll(refused); err != nil || string(b) != "no\n" {
		t.Errorf("refused: %q, %v", b, err)
	}
	long := dial(t, at, false)
	_, _ = long.Write(bytes.Repeat([]byte("o"), openingMost+1))
	if _, err := long.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("without end: %v, want a reset", err)
	}
	eventually(t, "all pairs end", func() bool { return e.Counters().Pairs == 0 })
}

// A client that sends its request a byte at a time, and never completes it, is given up at the time limit.
func TestSlowOpening(t *testing.T) {
	e, at := start(t, Config{Front: speaking{}, OpeningTimeout: 300 * time.Millisecond}, false)
	c := dial(t, at, false)
	go func() {
		for {
			if _, err := c.Write([]byte("o")); err != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := c.Read(make([]byte, 1)); err == nil { // either the write or the read gets the reset
		t.Error("the client is answered")
	}
	eventually(t, "the pair ends", func() bool { n := e.Counters(); return n.Pairs == 0 && n.Refused == 1 })
}

// Thousands of idle pairs cost little, and those beyond the limit wait until others end.
func TestIdlePairs(t *testing.T) {
	const pairs = 300
	to := serve(t, false, echo)
	e, at := start(t, Config{Front: toServer{server: to}, MaxPairs: pairs}, false)
	var open []*net.TCPConn
	for range pairs {
		open = append(open, dial(t, at, false))
	}
	eventually(t, "all are open", func() bool { return e.Counters().Pairs == pairs })
	more := dial(t, at, false) // by the kernel
	_, _ = more.Write([]byte("x"))
	time.Sleep(150 * time.Millisecond)
	if n := e.Counters().Pairs; n != pairs {
		t.Errorf("%d pairs, the limit is %d", n, pairs)
	}
	open[0].Close()
	b := make([]byte, 1)
	if _, err := io.ReadFull(more, b); err != nil || b[0] != 'x' {
		t.Errorf("%q, %v", b, err)
	}
}

// Draining lets present connections go on, and ends Run with the last.
func TestDrain(t *testing.T) {
	to := serve(t, false, echo)
	e, at := start(t, Config{Front: toServer{server: to}}, false)
	c := dial(t, at, false)
	eventually(t, "it is open", func() bool { return e.Counters().Pairs == 1 })
	e.Drain()
	time.Sleep(20 * time.Millisecond)
	_, _ = c.Write([]byte("still"))
	_ = c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != "still" {
		t.Errorf("%q, %v", b, err)
	}
	eventually(t, "it has ended", func() bool { return e.Counters().Pairs == 0 })
}

// What runs when an engine ends is reset.
func TestStop(t *testing.T) {
	to := serve(t, false, echo)
	l := listen(t, false)
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	e, err := New(Config{Front: toServer{server: to}, Listeners: []int{int(file.Fd())}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	c := dial(t, netip.MustParseAddrPort(l.Addr().String()), false)
	eventually(t, "it is open", func() bool { return e.Counters().Pairs == 1 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v, want a reset", err)
	}
}

// If the engine's process is killed, both ends of each connection are reset, whether it is idle or in use. So neither takes
// what it has received for all there is.
func TestKilled(t *testing.T) {
	const pairs = 20
	for _, mptcp := range []bool{false, true} {
		for _, inUse := range []bool{false, true} {
			t.Run(fmt.Sprintf("MPTCP: %v, in use: %v", mptcp, inUse), func(t *testing.T) {
				var open atomic.Int64
				clients, servers := make(chan error, pairs), make(chan error, pairs)
				to := serve(t, false, func(c *net.TCPConn) {
					_ = c.SetDeadline(time.Now().Add(30 * time.Second))
					servers <- exchangeUntilEnd(c, inUse, &open)
				})
				env := []string{childServer + "=" + to.String(), childHas + "=0"}
				if mptcp {
					env = append(env, childMPTCP+"=yes")
				}
				p := startProcess(t, env...)
				for range pairs {
					c := dial(t, p.at, mptcp)
					go func() { clients <- exchangeUntilEnd(c, inUse, &open) }()
				}
				eventually(t, "all ends have exchanged bytes", func() bool { return open.Load() == 2*pairs })
				p.kill()
				for range pairs {
					if err := <-clients; !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("client: %v, want a reset", err)
					}
					if err := <-servers; !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("server: %v, want a reset", err)
					}
				}
			})
		}
	}
}

// exchangeUntilEnd exchanges bytes with the other end, once or repeatedly, and returns how the connection ends. They fit
// into any window: MP_FASTCLOSE is sent once, and the peer ignores it behind bytes that it has not received.
func exchangeUntilEnd(c *net.TCPConn, repeatedly bool, open *atomic.Int64) error {
	b := make([]byte, 16<<10)
	for first := true; first || repeatedly; first = false {
		if _, err := c.Write(b); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		if first {
			open.Add(1)
		}
	}
	_, err := c.Read(b)
	return err
}

func TestNeedsAFront(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("an engine without listener and front was made")
	}
	if _, err := New(Config{Front: toServer{}, Listeners: []int{int(os.Stdin.Fd()) + 100000}}); err == nil {
		t.Error("an engine with a listener that is none was made")
	}
}

// A reset by a client that has ended its sending ends the connection to a server that sends nothing.
func TestResetAfterHalfClose(t *testing.T) {
	for _, mptcp := range []bool{false, true} {
		t.Run(fmt.Sprintf("MPTCP: %v", mptcp), func(t *testing.T) {
			halfClosed, ended := make(chan error, 1), make(chan error, 1)
			to := serve(t, false, func(c *net.TCPConn) {
				_, err := io.ReadAll(c)
				halfClosed <- err
				// Nothing more comes; only a reset makes the socket unusable.
				raw, err := c.SyscallConn()
				for end := time.Now().Add(30 * time.Second); err == nil && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
					var errno int
					if controlErr := raw.Control(func(fd uintptr) { errno, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR) }); controlErr != nil {
						err = controlErr
					}
					if errno != 0 {
						err = syscall.Errno(errno)
					}
				}
				ended <- err
			})
			e, at := start(t, Config{Front: toServer{server: to}}, mptcp)
			c := dial(t, at, mptcp)
			_, _ = c.Write([]byte("x"))
			_ = c.CloseWrite()
			if err := <-halfClosed; err != nil {
				t.Fatal(err)
			}
			_ = c.SetLinger(0)
			_ = c.Close()
			if err := <-ended; err == nil {
				t.Error("the server does not notice")
			}
			eventually(t, "the pair ends", func() bool { return e.Counters().Pairs == 0 })
		})
	}
}
