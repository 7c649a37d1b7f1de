package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Load is what `dcol lab load` does: one end of very many short connections,
// for the benchmarks. Its sockets are MPTCP.
type Load struct {
	// Listen is the address and first port to serve on; Ports is how many.
	Listen netip.AddrPort
	Ports  int
	// Connect is where the client connects; it takes the ports in turn.
	Connect netip.AddrPort
	// Rate is connections per second, over Duration; each is held for Hold and
	// then closed by the server, so that no port of the client's has to rest.
	Rate     int
	Duration time.Duration
	Hold     time.Duration
}

// Serve answers every connection's line, and closes it when the client asks.
func (l Load) Serve(ctx context.Context) error {
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(true)
	for i := range max(l.Ports, 1) {
		at := netip.AddrPortFrom(l.Listen.Addr(), l.Listen.Port()+uint16(i))
		listener, err := lc.Listen(ctx, "tcp", at.String())
		if err != nil {
			return fmt.Errorf("serve the load: %w", err)
		}
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go answer(conn)
			}
		}()
	}
	<-ctx.Done()
	return nil
}

// answer sends each line back; an empty one ends the connection.
func answer(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReaderSize(conn, 64)
	for {
		line, err := r.ReadString('\n')
		if err != nil || line == "\n" {
			return
		}
		if _, err := io.WriteString(conn, line); err != nil {
			return
		}
	}
}

// Drive opens the connections and says how many there were.
func (l Load) Drive(ctx context.Context, w io.Writer) error {
	d := net.Dialer{Timeout: 10 * time.Second}
	d.SetMultipathTCP(true)
	var opened, failed atomic.Int64
	var why atomic.Value
	var all sync.WaitGroup
	start := time.Now()
	total := int(l.Duration.Seconds() * float64(l.Rate))
	for i := range total {
		at := start.Add(time.Duration(float64(i) / float64(l.Rate) * float64(time.Second)))
		if wait := time.Until(at); wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		port := l.Connect.Port() + uint16(i%max(l.Ports, 1))
		all.Go(func() {
			if err := l.one(ctx, &d, netip.AddrPortFrom(l.Connect.Addr(), port)); err != nil {
				failed.Add(1)
				why.Store(err.Error())
				return
			}
			opened.Add(1)
		})
	}
	launched := time.Since(start)
	all.Wait()
	_, err := fmt.Fprintf(w, "opened %d failed %d seconds %.3f\n", opened.Load(), failed.Load(), launched.Seconds())
	if err == nil && failed.Load() > 0 {
		return fmt.Errorf("%d connections failed, one with: %v", failed.Load(), why.Load())
	}
	return err
}

// one is one connection's life.
func (l Load) one(ctx context.Context, d *net.Dialer, at netip.AddrPort) error {
	conn, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(l.Hold + 20*time.Second)); err != nil {
		return err
	}
	line := []byte("x\n")
	if _, err := conn.Write(line); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, line); err != nil {
		return err
	}
	time.Sleep(l.Hold)
	if _, err := conn.Write([]byte("\n")); err != nil {
		return err
	}
	if _, err := conn.Read(line); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the server did not close: %w", err)
	}
	return nil
}

// driven is what Drive printed.
type driven struct {
	opened, failed int
	seconds        float64
}

func readDriven(path string) (d driven, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return d, fmt.Errorf("read what the load says: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if n, _ := fmt.Sscanf(line, "opened %d failed %d seconds %f", &d.opened, &d.failed, &d.seconds); n == 3 {
			return d, nil
		}
	}
	return d, fmt.Errorf("the load said: %s", text)
}
