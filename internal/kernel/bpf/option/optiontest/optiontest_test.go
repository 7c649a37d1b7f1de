package optiontest

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Each part of the work is done with the segments of a download, and only that part.
func TestSegments(t *testing.T) {
	for _, test := range []struct {
		name string
		Work
	}{
		{"insert", Work{Insert: true}},
		{"parse", Work{Insert: true, Parse: true}},
		{"set", Work{Insert: true, Parse: true, Set: true}},
		{"nothing", Work{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ns := netnstest.New(t)
			s := cgrouptest.Open(t, ns, func(string) (*Segments, error) { return Open(test.Work) })
			defer s.Close()
			const size = 4 << 20
			timeout := download(t, ns, size)
			inserted, parsed, err := s.Counts()
			if err != nil {
				t.Fatal(err)
			}
			const fewest = size >> 18 // a segment has 64 KB at most, and those that wait for the receiver may be joined
			if (inserted >= fewest) != test.Insert || (parsed >= fewest) != test.Parse || (timeout != 0) != test.Set {
				t.Errorf("%d segments got the option, it was found in %d, and the user timeout is %d ms", inserted, parsed, timeout)
			}
		})
	}
}

// download has a server send so many bytes over the loopback interface, and returns the client's user timeout.
func download(t *testing.T, ns *netnstest.NS, size int64) (timeout int) {
	t.Helper()
	l := ns.Listen(t, "127.0.0.1:0")
	sent := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.CopyN(c, zeros{}, size)
			c.Close()
		}
		sent <- err
	}()
	c, err := ns.Dial(context.Background(), netip.MustParseAddrPort(l.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := io.Copy(io.Discard, c); err != nil || n != size {
		t.Fatalf("%d bytes came of %d: %v", n, size, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) { timeout, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return timeout
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
