// Package resets makes sure that clients of this host's converter learn of the end of MPTCP connections that the converter
// resets, also if its relay is killed. The kernel says so by MP_FASTCLOSE (RFC 8684, 3.5), in one RST on each subflow. It
// sends this RST only once. A client that misses it on all subflows waits for a minute or longer, for two reasons:
//
//   - It ignores the RST if it lacks earlier bytes of the subflow. It asks for another one by an ACK (RFC 5961, 3.2).
//   - The kernel does not know the connection any more. It answers this ACK, and all other packets, by an RST without
//     MP_FASTCLOSE. That ends the subflow only.
//
// A Repeater sends each RST with MP_FASTCLOSE several times within two seconds. For a minute, it also answers packets of
// the client in the kernel's place, with MP_FASTCLOSE. An nftables table leads the RSTs here. The table belongs to the
// process: without a Repeater, the kernel's own RSTs are all that clients get.
//
// An RST is repeated if it has the client's key, which the client sends when MPTCP's handshake ends. So a stranger with a
// forged address cannot make the Repeater send anything.
//
//	resets.go   Repeater: the sockets, and the loop
//	repeats.go  when which RST is sent
//	table.go    the nftables table
package resets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/packet"
)

// Repeater repeats the resets of a converter.
type Repeater struct {
	table  *nft.Conn
	logged *nft.Logged
	raw    [2]int // sockets for IPv4 and IPv6
}

// Open begins to follow the resets of the converter at a TCP port, in the calling thread's network namespace. Run must
// follow.
func Open(port uint16) (r *Repeater, err error) {
	r = &Repeater{raw: [2]int{-1, -1}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("repeat the converter's resets: %w", err), r.close())
		}
	}()
	for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if r.raw[i], err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW); err != nil {
			return r, fmt.Errorf("open a raw socket: %w", err)
		}
	}
	if r.logged, err = nft.Listen(logGroup); err != nil {
		return r, err
	}
	r.table, err = install(port)
	return r, err
}

func (r *Repeater) close() error {
	var errs []error
	if r.table != nil {
		// The end of the connection is not enough: a process that is just being started may hold it open for a moment.
		errs = append(errs, r.table.DeleteTable(table), r.table.Close())
	}
	if r.logged != nil {
		errs = append(errs, r.logged.Close())
	}
	for _, fd := range r.raw {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

// Run repeats resets until ctx ends.
func (r *Repeater) Run(ctx context.Context) error {
	heard := make(chan []byte)
	var failed error // why no more packets come
	go func() {
		defer close(heard)
		for {
			packets, err := r.logged.Receive()
			if err != nil {
				failed = err
				return
			}
			for _, b := range packets {
				select {
				case heard <- b:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	due := time.NewTimer(0)
	defer due.Stop()
	again := newRepeats()
	for {
		select {
		case <-ctx.Done():
			err := r.close()
			for range heard { // until the reader has ended
			}
			return err
		case b, ok := <-heard:
			if !ok {
				return errors.Join(failed, r.close())
			}
			r.send(again.heard(b, time.Now()))
		case <-due.C:
			for _, segment := range again.due(time.Now()) {
				r.send(segment)
			}
		}
		due.Reset(again.wait(time.Now()))
	}
}

// send sends a segment, if there is one. It may be lost, like any packet, so errors are ignored.
func (r *Repeater) send(p *packet.Packet) {
	if p == nil {
		return
	}
	// With these, the kernel chooses the route by the source address, too, as it did for the connection.
	if p.V4 != nil {
		from := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: p.Src().As4()})
		_ = unix.Sendmsg(r.raw[0], p.Bytes(), from, &unix.SockaddrInet4{Addr: p.Dst().As4()}, 0)
		return
	}
	from := unix.PktInfo6(&unix.Inet6Pktinfo{Addr: p.Src().As16()})
	_ = unix.Sendmsg(r.raw[1], p.Bytes(), from, &unix.SockaddrInet6{Addr: p.Dst().As16()}, 0)
}

// flow is a subflow.
type flow struct{ from, to netip.AddrPort }
