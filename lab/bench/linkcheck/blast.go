package linkcheck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	udpHeader = 8
	port      = 5201
	// rcvBuf is far above what the receiver can fall behind, so that no loss
	// is its own.
	rcvBuf = 64 << 20
)

type blastSpec struct {
	packet   int   // IP packet size, bytes
	rate     int64 // bit/s of IP packets; 0 is as fast as it goes
	duration time.Duration
}

type blasted struct {
	sent, packets int
	span          time.Duration // from the first packet's arrival to the last's
	took          time.Duration // to send
}

// blast sends UDP from one host to another and waits until nothing more comes.
func blast(ctx context.Context, from, to *testbed.Host, s blastSpec) (r blasted, err error) {
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.Addr4(), port))
	in, err := testbed.On(to, func() (*net.UDPConn, error) { return net.ListenUDP("udp4", at) })
	if err != nil {
		return r, err
	}
	defer in.Close()
	out, err := testbed.On(from, func() (*net.UDPConn, error) { return net.DialUDP("udp4", nil, at) })
	if err != nil {
		return r, err
	}
	defer out.Close()
	if err := prepare(in); err != nil {
		return r, err
	}
	received := make(chan blasted, 1)
	go func() { received <- receive(in) }()

	payload := make([]byte, s.packet-ipHeader-udpHeader)
	start := time.Now()
	for time.Since(start) < s.duration && ctx.Err() == nil {
		// What should be sent by now goes in one burst; then it sleeps a little.
		due := r.sent + 100
		if s.rate > 0 {
			due = int(time.Since(start).Seconds() * float64(s.rate) / 8 / float64(s.packet))
		}
		for ; r.sent < due; r.sent++ {
			if _, err := out.Write(payload); err != nil {
				return r, fmt.Errorf("send: %w", err)
			}
		}
		if s.rate > 0 {
			time.Sleep(time.Millisecond)
		}
	}
	r.took = time.Since(start)
	got := <-received
	r.packets, r.span = got.packets, got.span
	return r, ctx.Err()
}

// prepare gives a socket time stamps and a large buffer.
func prepare(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		optErr = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, rcvBuf),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1))
	})
	return errors.Join(err, optErr)
}

// quiet is the silence after which everything has arrived. It is longer than any queue holds packets.
const quiet = time.Second

// receive counts packets until there have been none for a while.
func receive(conn *net.UDPConn) (r blasted) {
	var data [65536]byte
	var control [128]byte
	var first, last time.Time
	for {
		if err := conn.SetReadDeadline(time.Now().Add(quiet)); err != nil {
			return r
		}
		_, n, _, _, err := conn.ReadMsgUDPAddrPort(data[:], control[:])
		if err != nil {
			break
		}
		at, ok := stamp(control[:n])
		if !ok {
			continue
		}
		if r.packets == 0 {
			first = at
		}
		last = at
		r.packets++
	}
	r.span = last.Sub(first)
	return r
}

// stream keeps a TCP connection full until stop is called.
func stream(ctx context.Context, from, to *testbed.Host) (stop func(), err error) {
	addr := netip.AddrPortFrom(to.Addr4(), port).String()
	listener, err := testbed.On(to, func() (net.Listener, error) { return (&net.ListenConfig{}).Listen(ctx, "tcp4", addr) })
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	out, err := testbed.On(from, func() (net.Conn, error) {
		return (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp4", addr)
	})
	if err != nil {
		return nil, err
	}
	in, err := listener.Accept()
	if err != nil {
		out.Close()
		return nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(io.Discard, in) }) // ends when stop closes it
	wg.Go(func() {
		for chunk := make([]byte, 256<<10); ; {
			if _, err := out.Write(chunk); err != nil {
				return
			}
		}
	})
	return func() {
		out.Close()
		in.Close()
		wg.Wait()
	}, nil
}
