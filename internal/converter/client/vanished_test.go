package client

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine/enginetest"
)

// If the path between a client and its converter is cut without a word, keep-alives of MPTCP connections notice that on both
// sides. The server and the program are reset. engine.TestVanishedEnds is the test for TCP.
func TestVanishedConverter(t *testing.T) {
	needsNamespace(t)
	setMPTCP(t, "close_timeout", "1") // for which the kernel keeps a connection without a subflow
	ended := make(chan error, 1)
	to := enginetest.Serve(t, server4, false, func(c *net.TCPConn) {
		b := make([]byte, 1)
		_, err := c.Read(b)
		if err == nil {
			_, err = c.Write(b)
		}
		if err == nil {
			_, err = c.Read(b)
		}
		ended <- err
	})
	_, convAt := startConverter(t)
	program := startAsked(t, member(t, choice.Always, convAt)).dial(t, to)
	_ = program.SetDeadline(time.Now().Add(40 * time.Second))
	b := make([]byte, 1)
	_, err := program.Write(b)
	if err == nil {
		_, err = program.Read(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	probeSoon(t, convAt)
	nft(t, fmt.Sprintf("table inet cut { chain in { type filter hook input priority 0; tcp sport %[1]d drop; tcp dport %[1]d drop; }; }", convAt.Port()), "cut")
	if _, err := program.Read(b); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the program got %v, want a reset", err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the server got %v, want a reset", err)
		}
	case <-time.After(40 * time.Second):
		t.Error("the server's connection goes on")
	}
}

// probeSoon waits until both ends of the connection to a converter are kept alive, and shortens their silence before the first
// probe and the wait for its answer.
func probeSoon(t *testing.T, converter netip.AddrPort) {
	t.Helper()
	enginetest.Eventually(t, "the connection to the converter is kept alive", func() bool {
		var ends int
		for _, fd := range connectedTo(t, converter) {
			alive, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
			if err != nil || alive == 0 {
				continue
			}
			ends++
			for _, option := range []int{unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT} {
				if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, 1); err != nil {
					t.Fatal(err)
				}
			}
		}
		return ends == 2
	})
}

// connectedTo returns this process's descriptors of connected sockets with an address at either end.
func connectedTo(t *testing.T, at netip.AddrPort) (fds []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		peer, err := unix.Getpeername(fd)
		if err != nil {
			continue
		}
		own, err := unix.Getsockname(fd)
		if err == nil && (isAt(peer, at) || isAt(own, at)) {
			fds = append(fds, fd)
		}
	}
	return fds
}

func isAt(sa unix.Sockaddr, at netip.AddrPort) bool {
	four, ok := sa.(*unix.SockaddrInet4)
	return ok && netip.AddrPortFrom(netip.AddrFrom4(four.Addr), uint16(four.Port)) == at
}
