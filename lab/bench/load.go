package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
)

// Load describes many MPTCP connections between two hosts of a benchmark.
type Load struct {
	// At is the server's address and its first port. The server has Ports ports, and the client uses them in turn.
	At    netip.AddrPort
	Ports int
	// Rate is the number of connections per second, over Duration. Each is held for Hold and then closed by the server, so
	// that the client's port does not stay in TIME-WAIT.
	Rate     int
	Duration time.Duration
	Hold     time.Duration
	// Active is the number of connections that exchange a line every Pulse while they are held. They are the first ones. The
	// others are idle.
	Active int
	Pulse  time.Duration
}

// LoadServerPart and LoadClientPart are the names of the programs of the two ends.
const (
	LoadServerPart = "load-server"
	LoadClientPart = "load-client"
)

// LoadServer is the server's end.
type LoadServer struct{ Load }

// LoadClient is the client's end.
type LoadClient struct{ Load }

func (l Load) port(i int) netip.AddrPort {
	return netip.AddrPortFrom(l.At.Addr(), l.At.Port()+uint16(i%l.Ports))
}

// loadReady is the first line of a server that listens.
const loadReady = "ready\n"

// Run answers every connection's lines, and closes it at an empty one.
func (l *LoadServer) Run(ctx context.Context, _ io.Reader, w io.Writer, _ *slog.Logger) error {
	// Without keepalive, each connection is four system calls less.
	lc := net.ListenConfig{KeepAlive: -1}
	lc.SetMultipathTCP(true)
	failed := make(chan error, l.Ports)
	var listeners []net.Listener
	defer func() {
		for _, listener := range listeners {
			listener.Close()
		}
	}()
	for i := range l.Ports {
		listener, err := lc.Listen(ctx, "tcp", l.port(i).String())
		if err != nil {
			return fmt.Errorf("serve the load: %w", err)
		}
		listeners = append(listeners, listener)
		go func() { failed <- accept(listener) }()
	}
	if _, err := io.WriteString(w, loadReady); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("serve the load: %w", err)
	}
}

func accept(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go answer(conn)
	}
}

// answer sends each line back. An empty line ends the connection.
func answer(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReaderSize(conn, 64)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil || len(line) == 1 {
			return
		}
		if _, err := conn.Write(line); err != nil {
			return
		}
	}
}

// Driven is the result of a load.
type Driven struct {
	Opened, Failed int
	Seconds        float64 // the time to open them, which may exceed Duration on a slow machine
}

// Run opens the connections and prints a Driven when all are closed.
func (l *LoadClient) Run(ctx context.Context, _ io.Reader, w io.Writer, _ *slog.Logger) error {
	d := net.Dialer{Timeout: 10 * time.Second, KeepAlive: -1}
	d.SetMultipathTCP(true)
	var opened, failed atomic.Int64
	var why atomic.Pointer[error]
	var all sync.WaitGroup
	start := time.Now()
	total := int(l.Duration.Seconds() * float64(l.Rate))
	for i := range total {
		at := start.Add(time.Duration(i) * time.Second / time.Duration(l.Rate))
		if wait := time.Until(at); wait > 0 {
			if err := crew.Pause(ctx, wait); err != nil {
				return err
			}
		}
		all.Go(func() {
			if err := l.one(ctx, &d, i); err != nil {
				failed.Add(1)
				why.Store(&err)
				return
			}
			opened.Add(1)
		})
	}
	took := time.Since(start)
	all.Wait()
	err := json.NewEncoder(w).Encode(Driven{int(opened.Load()), int(failed.Load()), took.Seconds()})
	if err == nil && failed.Load() > 0 {
		return fmt.Errorf("%d connections failed, the last with: %w", failed.Load(), *why.Load())
	}
	return err
}

// one opens a connection, holds it and makes the server close it.
func (l *LoadClient) one(ctx context.Context, d *net.Dialer, i int) error {
	conn, err := d.DialContext(ctx, "tcp", l.port(i).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := echo(conn); err != nil {
		return err
	}
	if err := l.hold(ctx, conn, i < l.Active); err != nil {
		return err
	}
	return end(conn)
}

// hold keeps a connection open for the time Hold.
func (l *LoadClient) hold(ctx context.Context, conn net.Conn, active bool) error {
	if !active {
		return crew.Pause(ctx, l.Hold)
	}
	for until := time.Now().Add(l.Hold); time.Now().Before(until); {
		if err := crew.Pause(ctx, l.Pulse); err != nil {
			return err
		}
		if err := echo(conn); err != nil {
			return err
		}
	}
	return nil
}

// loadPatience limits the wait for an answer of the other end.
const loadPatience = 20 * time.Second

// echo sends a line and waits until it comes back. Then both ends have confirmed MPTCP.
func echo(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(loadPatience)); err != nil {
		return err
	}
	line := []byte("x\n")
	if _, err := conn.Write(line); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, line)
	return err
}

// end makes the server close the connection.
func end(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(loadPatience)); err != nil {
		return err
	}
	line := []byte("\n")
	if _, err := conn.Write(line); err != nil {
		return err
	}
	if _, err := conn.Read(line); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the server did not close the connection: %w", err)
	}
	return nil
}
