package cc_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/lab/testbed"
)

var record = flag.Bool("record", false, "record the traces in testdata anew, in a network of the lab")

// tracedACKs is the number of ACKs that a trace in testdata has.
const tracedACKs = 1500

func traceFile(a cc.Algorithm) string { return filepath.Join("testdata", string(a)+".acks.gz") }

// The programs and the models agree at each ACK of uploads over two subflows: one of 10 Mbit/s at 20 ms with 0.3 % loss, one
// of 5 Mbit/s at 50 ms, as recorded by the programs.
func TestRecordedACKs(t *testing.T) {
	for _, a := range cc.Algorithms {
		t.Run(string(a), func(t *testing.T) {
			if *record {
				recordTrace(t, a)
			}
			records := readTrace(t, a)
			sockets := make(map[uint64]int)
			for _, r := range records {
				sockets[binary.LittleEndian.Uint64(r)]++
			}
			if len(sockets) != 2 || sockets[1] < tracedACKs/10 || sockets[2] < tracedACKs/10 {
				t.Errorf("the trace has %v ACKs of its subflows", sockets)
			}
			compare(t, a, records, tracedACKs/50)
		})
	}
}

func compare(t *testing.T, a cc.Algorithm, records [][]byte, leastLooks int) {
	t.Helper()
	compared, looked, differences := cc.Replay(a, records)
	for i, d := range differences {
		if i == 3 {
			break
		}
		t.Error(d)
	}
	if compared == 0 || looked < leastLooks || len(differences) > 0 {
		t.Errorf("of %d ACKs, %d of them with all subflows read, %d differ", compared, looked, len(differences))
	}
	t.Logf("%d ACKs, %d with all subflows read", compared, looked)
}

// A difference is noticed: one byte of a window changes.
func TestReplayNoticesDifferences(t *testing.T) {
	for _, a := range cc.Algorithms {
		records := readTrace(t, a)
		for _, r := range records {
			if a == cc.WVegas {
				r[8+40]++ // struct vegas after
			} else {
				r[8+40] ^= 1 // struct state after
			}
		}
		if _, _, differences := cc.Replay(a, records); len(differences) < len(records)/2 {
			t.Errorf("%s: %d of %d changed ACKs are noticed", a, len(differences), len(records))
		}
	}
}

func readTrace(t *testing.T, a cc.Algorithm) (records [][]byte) {
	t.Helper()
	file, err := os.Open(traceFile(a))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(z)
	if err != nil || len(all) < 8 {
		t.Fatal("a broken trace", err)
	}
	for size := int(binary.LittleEndian.Uint64(all)); len(all) >= 8+size; all = append(all[:8:8], all[8+size:]...) {
		records = append(records, bytes.Clone(all[8:8+size]))
	}
	return records
}

func writeTrace(t *testing.T, a cc.Algorithm, records [][]byte) {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(records[0])))); err != nil {
		t.Fatal(err)
	}
	numbers := make(map[uint64]uint64) // of sockets, in place of the kernel's addresses
	for _, r := range records {
		socket := binary.NativeEndian.Uint64(r)
		if _, ok := numbers[socket]; !ok {
			numbers[socket] = uint64(len(numbers) + 1)
		}
		binary.NativeEndian.PutUint64(r, numbers[socket])
		if _, err := z.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.Close(), os.MkdirAll("testdata", 0o755), os.WriteFile(traceFile(a), b.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// recordTrace records an upload over two subflows in the lab. The trace ends with the last of the ACKs.
func recordTrace(t *testing.T, a cc.Algorithm) {
	t.Helper()
	short := testbed.LinkParams{Rate: 10_000_000, Delay: 10 * time.Millisecond, Loss: 0.003, Queue: 50_000}
	long := testbed.LinkParams{Rate: 5_000_000, Delay: 25 * time.Millisecond, Queue: 62_500}
	back := func(p testbed.LinkParams) testbed.LinkParams { p.Loss = 0; return p }
	n, err := testbed.Build(t.Context(), testbed.Spec{
		Seed: 1, Backend: testbed.BackendEmulator, Hosts: []testbed.HostSpec{{Name: "client"}, {Name: "server"}},
		Links: []testbed.LinkSpec{
			{Name: "short", A: "client", B: "server", AtoB: short, BtoA: back(short)},
			{Name: "long", A: "client", B: "server", AtoB: long, BtoA: long},
		},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	client, server := n.Host("client"), n.Host("server")
	for _, h := range []*testbed.Host{client, server} { // the lab may have locked another on the routes
		if err := h.SetCongestionControl("reno"); err != nil {
			t.Fatal(err)
		}
	}
	first, _ := server.AddrOn("short")
	second, _ := server.AddrOn("long")
	for _, c := range []struct {
		host *testbed.Host
		args []string
	}{
		{client, []string{"limits", "set", "subflows", "2", "add_addr_accepted", "2"}},
		{server, []string{"limits", "set", "subflows", "2", "add_addr_accepted", "2"}},
		{server, []string{"endpoint", "add", second.String(), "dev", server.Interface("long"), "signal"}},
	} {
		if out, err := c.host.Command(t.Context(), "ip", append([]string{"mptcp"}, c.args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	r, err := cc.Record(a)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l, err := testbed.On(server, func() (net.Listener, error) { return listen(t.Context(), "0.0.0.0:0") })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := netip.MustParseAddrPort(l.Addr().String()).Port()
	drained := make(chan struct{})
	go func() { drain(l); close(drained) }()
	c, err := testbed.On(client, func() (net.Conn, error) { return dial(t.Context(), netip.AddrPortFrom(first, port).String(), r.Name()) })
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan struct{})
	go func() { _, _ = io.Copy(c, zeros{}); close(sent) }()
	var all [][]byte
	for deadline := time.Now().Add(time.Minute); len(all) < 3*tracedACKs; time.Sleep(100 * time.Millisecond) {
		some, err := r.Take()
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d ACKs came: %v", len(all), err)
		}
		all = append(all, some...)
	}
	c.Close()
	<-sent
	<-drained
	writeTrace(t, a, all[len(all)-tracedACKs:])
}

// The same, live, over the loopback interface.
func TestLiveACKs(t *testing.T) {
	for _, a := range cc.Algorithms {
		t.Run(string(a), func(t *testing.T) {
			r, err := cc.Record(a)
			if unavailable, ok := errors.AsType[*cc.UnavailableError](err); ok && (os.Geteuid() != 0 || netnstest.KernelBefore(t, 6, 4)) {
				t.Skip(unavailable)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			netnstest.New(t).Must(t, func() error {
				l, err := listen(t.Context(), "127.0.0.1:0")
				if err != nil {
					return err
				}
				defer l.Close()
				drained := make(chan struct{})
				go func() { drain(l); close(drained) }()
				c, err := dial(t.Context(), l.Addr().String(), r.Name())
				if err != nil {
					return err
				}
				_, err = c.Write(make([]byte, 8<<20))
				c.Close()
				<-drained
				return err
			})
			records, err := r.Take()
			if err != nil {
				t.Fatal(err)
			}
			compare(t, a, records, 0)
		})
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// drain reads all of the first connection.
func drain(l net.Listener) {
	c, err := l.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.Copy(io.Discard, c)
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(true)
	return config.Listen(ctx, "tcp4", address)
}

func dial(ctx context.Context, address, congestion string) (net.Conn, error) {
	var dialer net.Dialer
	dialer.SetMultipathTCP(true)
	dialer.Control = func(_, _ string, raw syscall.RawConn) (err error) {
		e := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
		})
		return errors.Join(err, e)
	}
	return dialer.DialContext(ctx, "tcp4", address)
}
