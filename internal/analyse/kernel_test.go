package analyse_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// patience bounds the time for which a test waits for a condition.
const patience = time.Minute

// twoLinks has a client and a server with two links, and a capture at the server.
type twoLinks struct {
	client, server *netnstest.NS
	file           string
}

func newTwoLinks(t *testing.T) *twoLinks { return newTwoLinksCaptured(t, "tcp") }

// newTwoLinksCaptured captures by a filter of tcpdump.
func newTwoLinksCaptured(t *testing.T, filter string) *twoLinks {
	t.Helper()
	for _, name := range []string{"tcpdump", "ip", "nft", "nstat"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s", name)
		}
	}
	w := &twoLinks{client: netnstest.New(t), server: netnstest.New(t), file: filepath.Join(t.TempDir(), "trace.pcap")}
	for _, n := range []string{"1", "2"} {
		netnstest.Veth(t, netnstest.End{NS: w.client, Name: "link" + n, Addresses: []string{"10.0." + n + ".1/24"}},
			netnstest.End{NS: w.server, Name: "link" + n, Addresses: []string{"10.0." + n + ".2/24"}})
	}
	cmd := exec.Command("tcpdump", "-i", "any", "-n", "-s", "128", "-Z", "root", "-U", "-w", w.file, filter)
	cmd.Cancel = nil
	w.server.Must(t, cmd.Start)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	// The file's header is written once the capture runs.
	eventually(t, "tcpdump runs", func() bool {
		info, err := os.Stat(w.file)
		return err == nil && info.Size() >= 24
	})
	return w
}
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// records analyses the packets captured so far.
func (w *twoLinks) records(t *testing.T) []*track.Record {
	t.Helper()
	b, err := os.ReadFile(w.file)
	if err != nil {
		t.Fatal(err)
	}
	all, _ := run(t, defaults(), b)
	return all
}

// connect makes an MPTCP connection over the first link.
func (w *twoLinks) connect(t *testing.T, multipathServer bool) (client, server net.Conn) {
	t.Helper()
	var l net.Listener
	w.server.Must(t, func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(multipathServer)
		l, err = lc.Listen(context.Background(), "tcp", "10.0.1.2:0")
		return err
	})
	t.Cleanup(func() { _ = l.Close() }) // joins need it as long as the connection lives
	w.client.Must(t, func() (err error) {
		var d net.Dialer
		d.SetMultipathTCP(true)
		client, err = d.Dial("tcp", l.Addr().String())
		return err
	})
	t.Cleanup(func() { _ = client.Close() })
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return client, server
}

// retransmitted returns the bytes that the kernel reinjected on the connection, and those that were acknowledged
// (struct mptcp_info in linux/mptcp.h).
func retransmitted(t *testing.T, c net.Conn) (bytes, acked uint64) {
	t.Helper()
	const (
		level, info              = 284, 1
		bytesRetrans, bytesAcked = 48, 72
	)
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var b [256]byte
	size := uint32(len(b))
	var errno syscall.Errno
	if err := raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, level, info, uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	}); err != nil {
		t.Fatal(err)
	}
	if errno != 0 || size < bytesAcked+8 {
		t.Fatalf("getsockopt MPTCP_INFO: %v, %d bytes", errno, size)
	}
	return binary.NativeEndian.Uint64(b[bytesRetrans:]), binary.NativeEndian.Uint64(b[bytesAcked:])
}

// The kernel counts the same reinjected bytes. The link that carries the data breaks behind the capture, and the
// backup takes over.
func TestKernelsReinjections(t *testing.T) {
	w := newTwoLinks(t)
	w.client.Output(t, "ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2")
	w.server.Output(t, "ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2")
	w.client.Output(t, "ip", "mptcp", "endpoint", "add", "10.0.2.1", "subflow", "backup")
	w.client.Output(t, "ip", "route", "add", "10.0.1.0/24", "via", "10.0.2.2", "table", "100")
	w.client.Output(t, "ip", "rule", "add", "from", "10.0.2.1", "table", "100")
	client, server := w.connect(t, true)
	exchange := func(n int) {
		if _, err := server.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		_ = client.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.ReadFull(client, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	exchange(1000)
	eventually(t, "the second subflow", func() bool {
		all := w.records(t)
		return len(all) == 1 && len(all[0].Subflows) == 2 && all[0].Subflows[1].State == "established"
	})
	// The client no longer gets packets by the first link.
	w.client.Output(t, "nft", "add table inet t; add chain inet t c { type filter hook input priority 0; }; add rule inet t c iifname link1 drop")
	const lost = 5000 // fits into the first window, so that all is on the link, and in the capture
	exchange(lost)
	var kernel uint64
	eventually(t, "all is acknowledged", func() bool {
		var acked uint64
		kernel, acked = retransmitted(t, server)
		return acked >= 1000+lost && kernel >= lost
	})
	var r *track.Record
	eventually(t, "the capture has what the kernel has sent again", func() bool {
		all := w.records(t)
		r = all[0]
		return len(all) == 1 && r.Reinjected >= kernel
	})
	if r.Reinjected != kernel || r.Subflows[1].FromServer.Reinjected != kernel || r.Fallback != nil {
		t.Errorf("%d bytes were reinjected, %d says the kernel; %+v", r.Reinjected, kernel, r.Subflows)
	}
	if r.ReinjectedAfter["timeout"] != r.Reinjections {
		t.Errorf("reinjected after %v", r.ReinjectedAfter)
	}
}

// The kernel counts the same fallbacks.
func TestKernelsFallbacks(t *testing.T) {
	w := newTwoLinks(t)
	const plain = 3
	for range plain {
		client, server := w.connect(t, false)
		_ = client.Close()
		_ = server.Close()
	}
	client, server := w.connect(t, true)
	_ = client.Close()
	_ = server.Close()
	if kernel := counted(t, w.client, "MPTcpExtMPCapableFallbackSYNACK"); kernel != plain {
		t.Fatalf("the kernel counts %d", kernel)
	}
	eventually(t, "all connections are in the capture", func() bool {
		all := w.records(t)
		return len(all) == plain+1 && all[plain].Fallback == nil && all[plain].End == track.EndDataFIN
	})
	for _, r := range w.records(t)[:plain] {
		if r.Fallback == nil || r.Fallback.Cause != track.CauseSYNACK {
			t.Errorf("%+v", r.Fallback)
		}
	}
}

// The kernel of a server counts the same fallbacks where a middlebox lets the option pass in SYNs only.
func TestKernelsFallbacksAtThirdACK(t *testing.T) {
	w := newTwoLinks(t)
	w.client.Output(t, "nft", "add table inet t; add chain inet t c { type filter hook output priority 0; }; add rule inet t c tcp flags & syn == 0 reset tcp option mptcp")
	const stripped = 2
	for range stripped {
		client, server := w.connect(t, true)
		if _, err := client.Write(make([]byte, 500)); err != nil {
			t.Fatal(err)
		}
		_ = server.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.ReadFull(server, make([]byte, 500)); err != nil {
			t.Fatal(err)
		}
		_ = client.Close()
		_ = server.Close()
	}
	if kernel := counted(t, w.server, "MPTcpExtMPCapableFallbackACK"); kernel != stripped {
		t.Fatalf("the kernel counts %d", kernel)
	}
	eventually(t, "all connections are in the capture, with their fallbacks", func() bool {
		n := 0
		for _, r := range w.records(t) {
			if r.Fallback != nil && r.Fallback.Cause == track.CauseACK {
				n++
			}
		}
		return n == stripped
	})
}

// counted reads one of a host's MPTCP counters.
func counted(t *testing.T, ns *netnstest.NS, name string) int {
	t.Helper()
	fields := strings.Fields(ns.Output(t, "nstat", "-asz", name))
	for i, f := range fields {
		if f == name && i+1 < len(fields) {
			n, err := strconv.Atoi(fields[i+1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no counter %s: %v", name, fields)
	return 0
}

// needsCounters skips the test on kernels that do not count these fallbacks.
func needsCounters(t *testing.T) {
	t.Helper()
	if netnstest.KernelBefore(t, 6, 12) {
		t.Skip("needs the counters of Linux 6.12")
	}
}

// sends has one end of a connection send some bytes and the other read them.
func sends(t *testing.T, from, to net.Conn, n int) {
	t.Helper()
	if _, err := from.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	_ = to.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(to, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

// The kernel counts the same fallbacks where a middlebox changes data, or removes options, once a connection is established.
// Linux sends MP_FAIL for wrong checksums only, and infinite mappings only with MP_FAIL. So the causes mp-fail and
// infinite-mapping are planted in TestPlanted, and cannot be produced here.
func TestKernelsFallbacksInMidConnection(t *testing.T) {
	needsCounters(t)
	// The TCP header of data has 60 bytes. Behind it, the first byte of data is changed.
	const changesData = "tcp doff 15 @th,480,8 set 0x58"
	for name, c := range map[string]struct {
		filter, checksums, rule string
		counters                map[string]int // of the server, for each connection
		cause                   string
	}{
		"changes data": {"tcp", "1", changesData, map[string]int{"MPTcpExtDataCsumErr": 1, "MPTcpExtMPFailTx": 1}, track.CauseChecksum},
		// The client answers the server's MP_FAIL, which is not in the capture, by one of its own and an infinite mapping.
		"changes data, and the capture has one direction": {"tcp and src net 10.0.1.1", "1", changesData, map[string]int{"MPTcpExtMPFailTx": 1}, track.CauseChecksum},
		"removes options": {"tcp", "0", "tcp flags & syn == 0 reset tcp option mptcp", map[string]int{"MPTcpExtDssFallback": 1}, track.CauseRemoved},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTwoLinksCaptured(t, c.filter)
			for _, ns := range []*netnstest.NS{w.client, w.server} {
				ns.Output(t, "sysctl", "-w", "net.mptcp.checksum_enabled="+c.checksums)
			}
			client, server := w.connect(t, true)
			for range 3 {
				sends(t, client, server, 500)
				sends(t, server, client, 500)
			}
			w.client.Output(t, "nft", "add table inet t; add chain inet t c { type filter hook output priority 0; }; add rule inet t c "+c.rule)
			for range 3 {
				sends(t, client, server, 500)
				sends(t, server, client, 500)
			}
			for counter, want := range c.counters {
				if kernel := counted(t, w.server, counter); kernel != want {
					t.Errorf("the kernel counts %d for %s", kernel, counter)
				}
			}
			_ = client.Close()
			_ = server.Close()
			var r *track.Record
			eventually(t, "the connection is in the capture, with its fallback", func() bool {
				all := w.records(t)
				if len(all) != 1 {
					return false
				}
				r = all[0]
				return r.Fallback != nil && (r.End != track.EndCapture || c.filter != "tcp")
			})
			if r.Fallback.Cause != c.cause {
				t.Errorf("%+v", r.Fallback)
			}
		})
	}
}

// The kernel of a client counts the same fallback where SYNs with the option are dropped, so that it tries one without.
func TestKernelsFallbackOfSYNs(t *testing.T) {
	needsCounters(t)
	w := newTwoLinks(t)
	w.server.Output(t, "nft", "add table inet t; add chain inet t c { type filter hook input priority 0; }; add rule inet t c tcp flags syn tcp option mptcp exists drop")
	client, server := w.connect(t, true)
	sends(t, client, server, 500)
	if kernel := counted(t, w.client, "MPTcpExtMPCapableSYNTXDrop"); kernel != 1 {
		t.Errorf("the kernel counts %d", kernel)
	}
	eventually(t, "the connection is in the capture, with its fallback", func() bool {
		all := w.records(t)
		return len(all) == 1 && all[0].Fallback != nil && all[0].Fallback.Cause == track.CauseSYN
	})
}
