// Package wire sends probes and receives the answers, by raw sockets. It needs CAP_NET_RAW.
//
// A Conn is for one destination, and Shared for many at a time.
package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/trace"
)

// ErrRight means that the process may not use raw sockets.
var ErrRight = errors.New("raw sockets need root or CAP_NET_RAW: run the command with sudo")

// Conn sends packets to one destination and hears those from it, and all ICMP errors. It is a trace.Network.
type Conn struct {
	sockets     *sockets
	destination netip.Addr
	source      netip.Addr
	arrivals    chan trace.Arrival
	close       func() error
}

// backlog bounds the arrivals that nobody has taken yet. What exceeds it is lost, as in a socket's buffer.
const backlog = 4096

// Open opens the sockets. device, if it is not empty, is the interface to use.
func Open(destination netip.Addr, device string) (*Conn, error) {
	source, err := sourceTo(destination, device)
	if err != nil {
		return nil, err
	}
	six := !destination.Is4()
	protocols := []int{icmpOf(six), unix.IPPROTO_TCP, unix.IPPROTO_UDP}
	s, err := openSockets(six, device, protocols, func(fd, protocol int) error {
		if protocol == icmpOf(six) {
			return nil // errors come from anywhere
		}
		if err := unix.Connect(fd, sockaddr(destination)); err != nil {
			return fmt.Errorf("hear only %v: %w", destination, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	c := &Conn{sockets: s, destination: destination, source: source, arrivals: make(chan trace.Arrival, backlog)}
	c.close = sync.OnceValue(s.close)
	s.read(c.take, func() { close(c.arrivals) })
	return c, nil
}

// take keeps a packet until somebody takes it.
func (c *Conn) take(b []byte, from netip.Addr, protocol int) {
	select {
	case c.arrivals <- trace.Arrival{At: time.Now(), Bytes: c.sockets.whole(b, from, c.source, protocol)}:
	default:
	}
}

// Source returns the address from which probes come.
func (c *Conn) Source() netip.Addr { return c.source }

// Send sends an IP packet with its header.
func (c *Conn) Send(b []byte) error { return c.sockets.send(b, c.destination) }

// Arrivals delivers the packets that come back.
func (c *Conn) Arrivals() <-chan trace.Arrival { return c.arrivals }

// Close closes the sockets.
func (c *Conn) Close() error { return c.close() }
