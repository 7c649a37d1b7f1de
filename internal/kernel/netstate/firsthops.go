package netstate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// nearHops is the number of routers to find. A home has up to two in a row. The router behind them answers from an
	// address on the link to the last of them.
	nearHops = 3
	// hopPatience is the time to wait for an answer. hopTries is the greatest number of tries, which are needed because
	// routers limit the rate of their answers.
	hopPatience = time.Second
	hopTries    = 2
	// traceroute is the destination port of probes. No probe reaches it.
	traceroute = 33434
)

// internet6 is the destination of probes. They expire on the way.
var internet6 = netip.MustParseAddr("2001:503:ba3e::2:30")

// FirstHops returns the addresses of the first routers on the way to the Internet in IPv6: those from which they answer
// packets whose hop limit expires (RFC 4443, 3.3). Routers that do not answer are left out.
func FirstHops(ctx context.Context) ([]netip.Addr, error) {
	var found [nearHops]netip.Addr
	var errs [nearHops]error
	// A socket belongs to the network namespace of the thread that opens it.
	var sockets [nearHops]*net.UDPConn
	for i := range sockets {
		if sockets[i], errs[i] = hopSocket(i + 1); errs[i] != nil {
			break // the other sockets would fail too
		}
	}
	var asking sync.WaitGroup
	for i, socket := range sockets {
		if socket != nil {
			asking.Go(func() {
				found[i], errs[i] = hop(ctx, socket)
				socket.Close()
			})
		}
	}
	asking.Wait()
	var list []netip.Addr
	for _, a := range found {
		if a.IsValid() {
			list = append(list, a)
		}
	}
	return list, errors.Join(errs[:]...)
}

// hopSocket opens a socket whose packets have the hop limit hops.
func hopSocket(hops int) (*net.UDPConn, error) {
	socket, err := net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(internet6, traceroute)))
	if err != nil {
		return nil, fmt.Errorf("there is no IPv6 route to the Internet: %w", err)
	}
	raw, err := socket.SyscallConn()
	if err == nil {
		var errs [2]error
		err = raw.Control(func(fd uintptr) {
			errs[0] = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops)
			errs[1] = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
		})
		err = errors.Join(err, errs[0], errs[1])
	}
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("prepare a probe of %d hops: %w", hops, err)
	}
	return socket, nil
}

// hop returns the router that answers, or an invalid address.
func hop(ctx context.Context, socket *net.UDPConn) (netip.Addr, error) {
	defer context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Now()) })()
	raw, err := socket.SyscallConn()
	if err != nil {
		return netip.Addr{}, err
	}
	for range hopTries {
		if ctx.Err() != nil {
			return netip.Addr{}, nil
		}
		// Write may return an earlier error of the socket, which is also in the queue.
		if _, err := socket.Write([]byte{0}); errors.Is(err, net.ErrClosed) {
			return netip.Addr{}, err
		}
		_ = socket.SetReadDeadline(time.Now().Add(hopPatience))
		var from netip.Addr
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			from, failed = readHop(int(fd))
			return !errors.Is(failed, syscall.EAGAIN)
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			return netip.Addr{}, err
		case failed != nil:
			return netip.Addr{}, fmt.Errorf("read the answer to a probe: %w", failed)
		case from.IsValid():
			return from, nil
		}
	}
	return netip.Addr{}, nil
}

// readHop returns the router that sent the error at the head of a socket's queue, or an invalid
// address.
func readHop(fd int) (netip.Addr, error) {
	var data, control [512]byte
	_, n, _, _, err := unix.Recvmsg(fd, data[:], control[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil {
		return netip.Addr{}, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return netip.Addr{}, err
	}
	for _, m := range messages {
		if m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR {
			if from, ok := offender(m.Data); ok {
				return from, nil
			}
		}
	}
	return netip.Addr{}, nil
}

// offender decodes a struct sock_extended_err and the struct sockaddr_in6 after it, and returns the
// sender of an ICMPv6 error.
func offender(b []byte) (netip.Addr, bool) {
	const origin, sockaddr, address = 4, 16, 8
	if len(b) < sockaddr+address+16 || b[origin] != unix.SO_EE_ORIGIN_ICMP6 || binary.NativeEndian.Uint16(b[sockaddr:]) != unix.AF_INET6 {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(b[sockaddr+address : sockaddr+address+16])
}
