package openvpn

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// capture holds the packets that alice sends to bob's OpenVPN from now on.
type capture struct {
	n         *network
	sizes     chan int // of IP packets
	fragments atomic.Int64
}

func (n *network) capture() *capture {
	n.t.Helper()
	c := &capture{n: n, sizes: make(chan int, 1000)}
	var fd int
	n.alice.Must(n.t, func() (err error) {
		all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
		if err != nil {
			return err
		}
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	})
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer unix.Close(fd)
		packet := make([]byte, 65536)
		for {
			select {
			case <-stop:
				return
			default:
			}
			size, from, err := unix.Recvfrom(fd, packet, 0)
			if ll, ok := from.(*unix.SockaddrLinklayer); err == nil && ok && ll.Pkttype == unix.PACKET_OUTGOING {
				c.take(packet[:size])
			}
		}
	}()
	n.t.Cleanup(func() { close(stop); <-done })
	return c
}

func (c *capture) take(p []byte) {
	var header int
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		if binary.BigEndian.Uint16(p[6:])&0x3fff != 0 { // more fragments, or an offset
			c.fragments.Add(1)
			return
		}
		if p[9] != unix.IPPROTO_UDP {
			return
		}
		header = 20
	case len(p) >= 40 && p[0]>>4 == 6:
		if p[6] == unix.IPPROTO_FRAGMENT {
			c.fragments.Add(1)
			return
		}
		if p[6] != unix.IPPROTO_UDP {
			return
		}
		header = 40
	default:
		return
	}
	if len(p) >= header+8 && binary.BigEndian.Uint16(p[header+2:]) == serverPort {
		select {
		case c.sizes <- len(p):
		default: // nobody counts any more
		}
	}
}

// awaitLarger is the size of the next packet that is larger than size: not one of a handshake or a
// ping.
func (c *capture) awaitLarger(size int) int {
	c.n.t.Helper()
	late := time.After(10 * time.Second)
	for {
		select {
		case got := <-c.sizes:
			if got > size {
				return got
			}
		case <-late:
			c.n.t.Fatalf("no packet larger than %d bytes left", size)
		}
	}
}
