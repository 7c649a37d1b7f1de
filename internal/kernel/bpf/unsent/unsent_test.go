package unsent

import (
	"errors"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// burst is what the kernel's scheduler may hand to a subflow beyond the limit (MPTCP_SEND_BURST_SIZE).
const burst = 64 << 10

func TestLimit(t *testing.T) {
	ns, other := slow(t), slow(t)
	waiting := func(in *netnstest.NS) (bytes int64) {
		in.Must(t, func() (err error) {
			bytes, err = unsentOf(t)
			return err
		})
		return bytes
	}
	if got := waiting(ns); got <= burst {
		t.Fatalf("only %d bytes wait in a subflow without a limit: nothing can be shown", got)
	}
	l := cgrouptest.Open(t, ns, Open)
	if got := waiting(ns); got > burst {
		t.Errorf("%d bytes wait in a subflow", got)
	}
	if got := waiting(other); got <= burst {
		t.Errorf("only %d bytes wait in a subflow of another namespace", got)
	}
	ns.Must(t, func() error {
		client, _ := connect(t, unix.IPPROTO_TCP)
		bound, err := unix.GetsockoptInt(client, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT)
		if bound != 0 {
			t.Errorf("plain TCP is bound to %d bytes", bound)
		}
		return err
	})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := waiting(ns); got <= burst {
		t.Errorf("only %d bytes wait in a subflow after the end", got)
	}
}

// Windows of half a gigabyte and more, as fast paths have them, are not bound to less than small ones are.
// The test has small windows, and so a bound of more of them.
func TestLimitOfLargeWindows(t *testing.T) {
	ns := slow(t)
	ns.Must(t, func() error {
		const windows = 160_000 // times 10 packets and more is over 2 GiB
		l, err := open("", leastBytes, windows)
		if e, ok := errors.AsType[*sockops.Error](err); ok && !e.Occupied {
			t.Logf("needs cgroup v2: %v", err)
			return nil
		}
		if err != nil {
			return err
		}
		defer l.Close()
		if got, err := unsentOf(t); err != nil || got <= burst {
			t.Errorf("only %d bytes wait in a subflow, %v", got, err)
		}
		return nil
	})
}

// The agent's unit has no more.
func TestTwoCapabilitiesAreEnough(t *testing.T) { cgrouptest.TwoCapabilitiesAreEnough(t, Open) }

func TestCgroupThatIsNone(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		_, err := Open(t.TempDir())
		if e, ok := errors.AsType[*sockops.Error](err); !ok || e.Fix == "" {
			t.Errorf("got %v", err)
		}
		return nil
	})
}

// slow is a network namespace whose loopback interface carries 10 Mbit/s, with a queue that keeps windows small.
func slow(t *testing.T) *netnstest.NS {
	ns := netnstest.New(t)
	ns.Must(t, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMTU(lo, 1500), netlink.QdiscAdd(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       10e6 / 8, Buffer: netlink.Xmittime(10e6/8, 10000), Limit: 15000,
		}))
	})
	return ns
}

// unsentOf fills an MPTCP connection for a while, and tells how much waits in its subflow beyond what its
// window allows, in the middle of all looks: when a window has just shrunk, more waits for it. The number of looks is
// the same on a slow machine, where few in a second would mostly see the large windows of the beginning.
func unsentOf(t *testing.T) (int64, error) {
	client, server := connect(t, unix.IPPROTO_MPTCP)
	data, seen := make([]byte, 1<<20), []int64(nil)
	for ; len(seen) < 100; time.Sleep(10 * time.Millisecond) {
		if _, err := unix.SendmsgN(client, data, nil, nil, unix.MSG_DONTWAIT); err != nil && !errors.Is(err, unix.EAGAIN) {
			return 0, err
		}
		for n := 1; n > 0; { // the receiver's window grows with what is read
			n, _, _ = unix.Recvfrom(server, data, unix.MSG_DONTWAIT)
		}
		now, err := unsentNow(t, client)
		if err != nil {
			return 0, err
		}
		seen = append(seen, now)
	}
	slices.Sort(seen)
	return seen[len(seen)/2], nil
}

func unsentNow(t *testing.T, client int) (int64, error) {
	const solMPTCP, mptcpTCPInfo = 284, 2 // linux/socket.h, linux/mptcp.h
	info := struct {
		sizeData, subflows, sizeKernel, sizeUser uint32 // struct mptcp_subflow_data
		of                                       unix.TCPInfo
	}{sizeData: 16, sizeUser: uint32(unsafe.Sizeof(unix.TCPInfo{}))}
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(client), solMPTCP, mptcpTCPInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	if info.subflows != 1 {
		t.Errorf("the connection has %d subflows", info.subflows)
	}
	window := int64(info.of.Snd_cwnd) * int64(info.of.Snd_mss)
	return int64(info.of.Notsent_bytes) - max(leastBytes, leastWindows*window), nil
}

// connect makes a connection over the loopback interface.
func connect(t *testing.T, protocol int) (client, server int) {
	t.Helper()
	socket := func() int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			t.Skipf("needs MPTCP: %v", err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	listener, client := socket(), socket()
	// As the kernel's own tuning makes them in time.
	err := errors.Join(unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
		unix.SetsockoptInt(client, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 8<<20))
	at := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if err == nil {
		err = unix.Bind(listener, at)
	}
	if err == nil {
		err = unix.Listen(listener, 1)
	}
	var name unix.Sockaddr
	if err == nil {
		name, err = unix.Getsockname(listener)
	}
	if err == nil {
		err = unix.Connect(client, name)
	}
	if err == nil {
		server, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(server) })
	return client, server
}
