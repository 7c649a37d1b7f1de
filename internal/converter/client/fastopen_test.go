package client

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/engine/enginetest"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
	"github.com/detour-collective/dcol/internal/converter/server"
)

// A message in the SYN of an MPTCP connection is answered before the handshake has ended. The answer arrives also if
// the ACK that ends the handshake comes late, and the connection remains MPTCP.
func TestMessageInSYN(t *testing.T) {
	needsNamespace(t)
	const setting = "/proc/sys/net/ipv4/tcp_fastopen"
	before, err := os.ReadFile(setting)
	if err != nil {
		t.Fatal(err)
	}
	// Client and server, both without TFO's cookies.
	if err := os.WriteFile(setting, []byte("519"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(setting, before, 0) })
	l := enginetest.Listen(t, converter, true)
	raw, err := l.SyscallConn()
	if err == nil {
		var bad error
		err = raw.Control(func(fd uintptr) { bad = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 100) })
		err = errors.Join(err, bad)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, at := enginetest.StartAt(t, server.New(key), l)
	to := enginetest.Serve(t, server4, false, enginetest.Echo)
	sealed := key.Seal(cookie.Claim{Mark: memberMark, Client: at.Addr(), Expires: time.Now().Add(time.Hour)})
	for i, c := range []struct{ message, want rfc8803.Message }{
		{rfc8803.Message{Info: true}, rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.NotAuthorized}}},
		{rfc8803.Message{Info: true, Cookie: sealed}, rfc8803.Message{Supported: &rfc8803.Supported{Kinds: []byte{rfc8803.KindMPTCP}}}},
		{rfc8803.Message{Connect: &rfc8803.Connect{Server: to}, Cookie: sealed}, rfc8803.Message{ExtendedHeader: []byte{}}},
	} {
		// The client's first ACK is lost, and sent again when the server repeats its SYN+ACK.
		table := fmt.Sprintf("late%d", i)
		nft(t, fmt.Sprintf(`table inet %s {
			chain out { type filter hook output priority 0;
				ip daddr %s tcp dport %d tcp flags == ack quota until 110 bytes drop
			}
		}`, table, at.Addr(), at.Port()), table)
		message, err := c.message.Append(nil)
		want, err2 := c.want.Append(nil)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		answer, mptcp := askInSYN(t, at, message)
		if !bytes.Equal(answer, want) || !mptcp {
			t.Errorf("%x is answered with %x, want %x; MPTCP %v", message, answer, want, mptcp)
		}
	}
}

// askInSYN sends a message in the SYN of an MPTCP connection, and returns what comes back first.
func askInSYN(t *testing.T, to netip.AddrPort, message []byte) (answer []byte, mptcp bool) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	patience := unix.NsecToTimeval(int64(20 * time.Second))
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
		unix.Sendto(fd, message, unix.MSG_FASTOPEN, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}),
	)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, rfc8803.MaxLen)
	n, err := unix.Read(fd, b)
	if err != nil {
		t.Errorf("no answer: %v", err)
	}
	const isMPTCP = 43 // TCP_IS_MPTCP of linux/tcp.h
	is, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, isMPTCP)
	return b[:max(n, 0)], err == nil && is == 1
}
