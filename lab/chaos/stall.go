package chaos

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/lab/chaos/twin"
)

// heldByKernel reports whether the kernel of one end withholds bytes of a connection from a program that only reads. The
// bytes are in a subflow's queue, while out-of-order data fills the connection's receive buffer. Linux 6.18 never recovers
// from that, and only the program could enlarge the buffer. In every connection, bytes are in such a queue for a moment.
// So heldByKernel requires that the same bytes are still there after a while without progress.
func (w inspector) heldByKernel(ctx context.Context, c *twin.Conn) (bool, error) {
	received := c.Received()
	first, err := w.queued(c)
	if err != nil || len(first) == 0 {
		return false, err
	}
	for range 4 {
		pause(ctx, heldFor/4)
		again, err := w.queued(c)
		if err != nil {
			return false, err
		}
		for at, n := range first {
			if again[at] != n {
				delete(first, at)
			}
		}
	}
	return len(first) > 0 && c.Received() == received, nil
}

const heldFor = 2 * time.Second

// queued lists how many bytes wait in which subflows' queues, at both ends.
func (w inspector) queued(c *twin.Conn) (map[ends]uint32, error) {
	found := map[ends]uint32{}
	of := map[string]netip.AddrPort{alice: c.Local(), server: c.Seen()}
	if c.Record().Stream.Converted { // any of those that the relays have
		of = map[string]netip.AddrPort{alice: w.convertsAt(), converter: w.convertsAt()}
	}
	for host, peer := range of {
		connections, err := w.connections(host)
		if err != nil {
			return nil, err
		}
		unread, err := w.unread(host)
		if err != nil {
			return nil, err
		}
		for _, m := range connections {
			if m.Local != peer && m.Remote != peer {
				continue
			}
			for _, s := range m.Subflows {
				at := ends{s.Local, s.Remote}
				if n := unread[at]; n > 0 {
					found[at] = n
				}
			}
		}
	}
	return found, nil
}

// ends are the two addresses of a TCP socket.
type ends struct{ local, remote netip.AddrPort }

// unread lists how many bytes wait in each TCP socket of a host.
func (w inspector) unread(host string) (map[ends]uint32, error) {
	waiting := map[ends]uint32{}
	err := w.Host(host).Do(func() error {
		for _, family := range []uint8{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			sockets, err := netlink.SocketDiagTCP(family)
			if err != nil {
				return err
			}
			for _, s := range sockets {
				local, _ := netip.AddrFromSlice(s.ID.Source)
				remote, _ := netip.AddrFromSlice(s.ID.Destination)
				waiting[ends{
					netip.AddrPortFrom(local.Unmap(), s.ID.SourcePort), netip.AddrPortFrom(remote.Unmap(), s.ID.DestinationPort),
				}] = s.RQueue
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list what waits in sockets of %s: %w", host, err)
	}
	return waiting, nil
}
