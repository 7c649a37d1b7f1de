package linkcheck

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	ipHeader   = 20
	icmpHeader = 8
)

// ping sends echo requests and returns the round-trip times of those answered. The kernel timestamps the
// replies, so this program may be late for them. The program itself timestamps the requests. It runs in real
// time if permitted, because other work might run between reading the clock and sending.
func ping(ctx context.Context, from *testbed.Host, to netip.Addr, packetSize, count int, interval, patience time.Duration) (rtts []time.Duration, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread is of no use to others
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
		rtts, err = pingOnThread(ctx, from, to, packetSize, count, interval, patience)
	}()
	<-done
	return rtts, err
}

func pingOnThread(ctx context.Context, from *testbed.Host, to netip.Addr, packetSize, count int, interval, patience time.Duration) ([]time.Duration, error) {
	fd, err := testbed.On(from, func() (int, error) {
		return unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	})
	if err != nil {
		return nil, fmt.Errorf("open ICMP socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return nil, fmt.Errorf("ask for time stamps: %w", err)
	}
	remote := &unix.SockaddrInet4{Addr: to.As4()}
	sent := make([]time.Time, count)
	var rtts []time.Duration
	request := make([]byte, packetSize-ipHeader)
	next := time.Now()
	for i := range count {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		fillEcho(request, uint16(i))
		sent[i] = time.Now()
		if err := unix.Sendto(fd, request, 0, remote); err != nil {
			return nil, fmt.Errorf("send echo request: %w", err)
		}
		next = next.Add(interval)
		if err := replies(fd, sent, &rtts, time.Until(next)); err != nil {
			return nil, err
		}
	}
	for end := time.Now().Add(patience); len(rtts) < count && time.Now().Before(end) && ctx.Err() == nil; {
		if err := replies(fd, sent, &rtts, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return rtts, ctx.Err()
}

// fillEcho makes an echo request (RFC 792).
func fillEcho(b []byte, seq uint16) {
	clear(b[:icmpHeader])
	b[0] = 8 // echo request
	binary.BigEndian.PutUint16(b[4:], uint16(os.Getpid()))
	binary.BigEndian.PutUint16(b[6:], seq)
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
}

// replies collects what comes within the time.
func replies(fd int, sent []time.Time, rtts *[]time.Duration, within time.Duration) error {
	end := time.Now().Add(within)
	var data, control [512]byte
	for {
		wait := time.Until(end)
		if wait <= 0 {
			return nil
		}
		ts := unix.NsecToTimespec(int64(wait))
		n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &ts, nil)
		if n == 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for echo reply: %w", err)
		}
		n, nc, _, _, err := unix.Recvmsg(fd, data[:], control[:], unix.MSG_DONTWAIT)
		if err != nil {
			return fmt.Errorf("receive echo reply: %w", err)
		}
		at, ok := stamp(control[:nc])
		if n < ipHeader+icmpHeader || data[ipHeader] != 0 || !ok {
			continue
		}
		if seq := int(binary.BigEndian.Uint16(data[ipHeader+6:])); seq < len(sent) {
			*rtts = append(*rtts, at.Sub(sent[seq].Round(0))) // wall clock, as the stamp
		}
	}
}

// stamp returns when the kernel received a packet.
func stamp(control []byte) (time.Time, bool) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, false
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:]))), true
		}
	}
	return time.Time{}, false
}

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(int(q*float64(len(d))), len(d)-1)]
}
