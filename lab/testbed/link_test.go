package testbed

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// echo starts a UDP echo server on a host.
func echo(t *testing.T, h *Host) netip.AddrPort {
	t.Helper()
	addr := netip.AddrPortFrom(h.Addr4(), 7)
	var conn *net.UDPConn
	err := h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(addr))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var data [2000]byte
		for {
			n, from, err := conn.ReadFromUDPAddrPort(data[:])
			if err != nil {
				return
			}
			conn.WriteToUDPAddrPort(data[:n], from)
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return addr
}

func dialUDP(t *testing.T, h *Host, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	err := h.Do(func() (err error) {
		conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// ask sends a datagram and waits for its echo.
func ask(conn *net.UDPConn, payload string, patience time.Duration) (time.Duration, error) {
	start := time.Now()
	if _, err := conn.Write([]byte(payload)); err != nil {
		return 0, err
	}
	if err := conn.SetReadDeadline(start.Add(patience)); err != nil {
		return 0, err
	}
	var data [2000]byte
	n, err := conn.Read(data[:])
	if err == nil && string(data[:n]) != payload {
		err = errors.New("the echo is of something else")
	}
	return time.Since(start), err
}

func TestSetLinkWhileItRuns(t *testing.T) {
	for _, backend := range backends(t) {
		if backend != BackendVeth {
			t.Run(backend, func(t *testing.T) { setLinkWhileItRuns(t, backend) })
		}
	}
}

func setLinkWhileItRuns(t *testing.T, backend string) {
	n := build(t, pair(backend, LinkParams{}))
	conn := dialUDP(t, n.Host("left"), echo(t, n.Host("right")))
	if _, err := ask(conn, "before", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	p := LinkParams{Delay: 40 * time.Millisecond}
	if err := n.SetLink("line", p, p); err != nil {
		t.Fatal(err)
	}
	if took, err := ask(conn, "slow", 10*time.Second); err != nil || took < 2*p.Delay {
		t.Errorf("took %v, %v; want at least %v", took, err, 2*p.Delay)
	}
	if err := n.SetLink("line", LinkParams{Loss: 1}, LinkParams{}); err != nil {
		t.Fatal(err)
	}
	if err := n.ResetStats(); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(conn, "lost", 50*time.Millisecond); err == nil {
		t.Error("a packet survived a loss of 1")
	}
	ab, ba, err := n.LinkStats("line")
	if err != nil || ab.LossDrops+ab.QueueDrops != 1 || ab.Packets != 0 || ba != (LinkStats{}) {
		t.Errorf("counted %+v and %+v, %v; want one lost on the way there", ab, ba, err)
	}
	if err := n.SetLink("line", LinkParams{Loss: 3}, LinkParams{}); err == nil || !strings.Contains(err.Error(), "loss 3") {
		t.Errorf("a loss of 3 gives %v", err)
	}
	if err := n.SetLink("other", LinkParams{}, LinkParams{}); err == nil || !strings.Contains(err.Error(), "no such link") {
		t.Errorf("an unknown link gives %v", err)
	}
}

func TestLinkDown(t *testing.T) {
	for _, backend := range backends(t) {
		t.Run(backend, func(t *testing.T) {
			n := build(t, pair(backend, LinkParams{}))
			conn := dialUDP(t, n.Host("left"), echo(t, n.Host("right")))
			if _, err := ask(conn, "before", 10*time.Second); err != nil {
				t.Fatal(err)
			}
			if err := n.LinkDown("line", true); err != nil {
				t.Fatal(err)
			}
			if _, err := ask(conn, "down", 50*time.Millisecond); err == nil {
				t.Error("a packet crossed a link that is down")
			}
			if err := n.LinkDown("line", false); err != nil {
				t.Fatal(err)
			}
			if _, err := ask(conn, "after", 10*time.Second); err != nil {
				t.Errorf("after it came up again: %v", err)
			}
		})
	}
}

// TestAQuietLinkIsSilent waits some seconds for packets that no program sent, such as router solicitations
// and membership reports.
func TestAQuietLinkIsSilent(t *testing.T) {
	var networks []*Network
	for _, backend := range backends(t) {
		networks = append(networks, build(t, pair(backend, LinkParams{})))
	}
	time.Sleep(3 * time.Second)
	for _, n := range networks {
		ab, ba, err := n.LinkStats("line")
		if err != nil || ab != (LinkStats{}) || ba != (LinkStats{}) {
			t.Errorf("%s: counted %+v and %+v, %v; want nothing", n.Backend(), ab, ba, err)
		}
	}
}

func TestVethCountsPackets(t *testing.T) {
	n := build(t, pair(BackendVeth, LinkParams{}))
	conn := dialUDP(t, n.Host("left"), echo(t, n.Host("right")))
	if err := n.ResetStats(); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(conn, "12345", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	want := LinkStats{Packets: 1, Bytes: 20 + 8 + 5}
	if ab, ba, err := n.LinkStats("line"); err != nil || ab != want || ba != want {
		t.Errorf("counted %+v and %+v, %v; want %+v", ab, ba, err, want)
	}
	p := LinkParams{Rate: 1e6}
	if err := n.SetLink("line", p, p); err == nil || !strings.Contains(err.Error(), "shapes nothing") {
		t.Errorf("parameters give %v", err)
	}
}

// TestNetemIsChosenWhereTheKernelHasIt, and where not it is an error to ask.
func TestNetemIsChosenWhereTheKernelHasIt(t *testing.T) {
	p := LinkParams{Rate: 10e6, Delay: 10 * time.Millisecond}
	n := build(t, pair(BackendAuto, p))
	err := n.Host("left").Do(probeNetem)
	switch {
	case err == nil && n.Backend() != BackendNetem:
		t.Errorf("the kernel has netem, but it chose %q", n.Backend())
	case err != nil && n.Backend() != BackendEmulator:
		t.Errorf("the kernel says %v, but it chose %q", err, n.Backend())
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		t.Errorf("the kernel lacks netem, and says %v", err)
	case err != nil:
		_, err := Build(t.Context(), pair(BackendNetem, p), discard)
		if err == nil || !strings.Contains(err.Error(), "sch_netem") {
			t.Errorf("asked for regardless, it gives %v, which names no fix", err)
		}
	}
}

func TestCongestionControl(t *testing.T) {
	n := build(t, pair(BackendVeth, LinkParams{}))
	left, right := n.Host("left"), n.Host("right")
	content, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		t.Fatal(err)
	}
	algorithms := []string{"", "reno", "cubic"} // "": as built
	if slices.Contains(strings.Fields(string(content)), "bbr") {
		algorithms = append(algorithms, "bbr", "cubic")
	}
	for _, name := range algorithms {
		want := name
		if name == "" {
			want = DefaultCongestionControl
		} else if err := errors.Join(left.SetCongestionControl(name), right.SetCongestionControl(name)); err != nil {
			t.Fatal(err)
		}
		for _, addr := range []netip.Addr{right.Addr4(), right.Addr6()} {
			if opened, accepted := congestionOf(t, left, right, addr); opened != want || accepted != want {
				t.Errorf("after setting %q, connections to %v have %q and %q", name, addr, opened, accepted)
			}
		}
	}
	if err := left.SetCongestionControl("nonsense"); err == nil || !strings.Contains(err.Error(), "reno") {
		t.Errorf("an unknown one gives %v, want the known ones named", err)
	}
}

// congestionOf returns the algorithm of both ends of a new connection.
func congestionOf(t *testing.T, from, to *Host, addr netip.Addr) (opened, accepted string) {
	t.Helper()
	target := netip.AddrPortFrom(addr, 8000).String()
	var listener net.Listener
	err := to.Do(func() (err error) {
		listener, err = net.Listen("tcp", target)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var out net.Conn
	err = from.Do(func() (err error) {
		out, err = net.DialTimeout("tcp", target, 10*time.Second)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	return algorithm(t, out), algorithm(t, in)
}

func algorithm(t *testing.T, conn net.Conn) (name string) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		// Go listens with MPTCP: such a socket answers for its subflows.
		name, optErr = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	})
	if err := errors.Join(err, optErr); err != nil {
		t.Fatal(err)
	}
	return strings.TrimRight(name, "\x00")
}
