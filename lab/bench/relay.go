package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/server"
)

// Relay accepts MPTCP connections at one address and relays each to a server by TCP.
type Relay struct {
	At, To netip.AddrPort
	// Copy makes two goroutines with io.Copy relay each connection, in place of dcol's engine.
	Copy bool
	// Convert makes the engine a converter: clients name the server by the Convert protocol, and To is not used.
	Convert bool
}

// RelayPart is the program of a Relay.
const RelayPart = "relay"

// Run relays until ctx is done.
func (r *Relay) Run(ctx context.Context, _ io.Reader, _ io.Writer, log *slog.Logger) error {
	lc := net.ListenConfig{KeepAlive: -1}
	lc.SetMultipathTCP(true)
	l, err := lc.Listen(ctx, "tcp4", r.At.String())
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	if r.Copy {
		return r.copyAll(ctx, l)
	}
	fd, err := ownDescriptor(l.(*net.TCPListener))
	l.Close()
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	defer unix.Close(fd)
	var front engine.Front = fixedServer{r.To}
	if r.Convert {
		front = server.New(benchKey)
	}
	e, err := engine.New(engine.Config{Listeners: []int{fd}, Front: front, Log: log})
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return e.Run(ctx)
}

// ownDescriptor returns a copy of a listener's descriptor that Go's poller does not watch. The poller watches copies that
// the method File returns. It would wake a thread for each new connection, besides the loop that accepts it.
func ownDescriptor(l *net.TCPListener) (fd int, err error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return -1, err
	}
	failed := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(failed, err); err != nil {
		return -1, err
	}
	return fd, nil
}

// fixedServer is the front of an engine that relays all connections to one server. It is also the state of each
// connection, because clients are asked nothing.
type fixedServer struct{ to netip.AddrPort }

func (f fixedServer) Open(engine.Accepted) (engine.Opening, error) { return f, nil }
func (f fixedServer) Read([]byte) engine.Step                      { return engine.Step{Dial: &engine.Dial{To: f.to}} }
func (f fixedServer) Dialled(engine.Result) engine.Step            { return engine.Step{} }

// copyAll relays by io.Copy, which splices from TCP as Go's library does.
func (r *Relay) copyAll(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		client, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		go r.copyOne(ctx, client.(*net.TCPConn))
	}
}

func (r *Relay) copyOne(ctx context.Context, client *net.TCPConn) {
	defer client.Close()
	d := net.Dialer{KeepAlive: -1}
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp4", r.To.String())
	if err != nil {
		return
	}
	defer conn.Close()
	to := conn.(*net.TCPConn)
	var both sync.WaitGroup
	for _, way := range [][2]*net.TCPConn{{client, to}, {to, client}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], way[0]) // the sender notices that the connection is broken
			_ = way[1].CloseWrite()
		})
	}
	both.Wait()
}
