package testbed

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"
)

// connect opens a connection from left to right, of plain TCP or of MPTCP.
func connect(t *testing.T, n *Network, addr netip.Addr, mptcp bool) (out, in net.Conn) {
	t.Helper()
	target := netip.AddrPortFrom(addr, 8000).String()
	var listener net.Listener
	err := n.Host("right").Do(func() (err error) {
		var config net.ListenConfig
		config.SetMultipathTCP(mptcp)
		listener, err = config.Listen(context.Background(), "tcp", target)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	err = n.Host("left").Do(func() (err error) {
		dialer := net.Dialer{Timeout: 20 * time.Second}
		dialer.SetMultipathTCP(mptcp)
		out, err = dialer.Dial("tcp", target)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	if in, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	return out, in
}

// counter returns one of a host's SNMP counters, 0 if the kernel does not have it.
func counter(t *testing.T, h *Host, name string) int {
	t.Helper()
	for line := range strings.Lines(run(t, h, "nstat", "-asz")) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// impairedPair returns a network that impairs packets to the right.
func impairedPair(t *testing.T, i Impairments) *Network {
	t.Helper()
	line := LinkParams{Rate: 50e6, Delay: 2 * time.Millisecond}
	spec := pair(BackendEmulator, line)
	spec.Links[0].AtoB.Impairments = i
	return build(t, spec)
}

// TestWhoNoticesDamage sends random bytes over plain TCP: its checksum notices a
// flipped bit, and not what was tampered with.
func TestWhoNoticesDamage(t *testing.T) {
	data := make([]byte, 1<<20)
	_, _ = rand.Read(data)
	for _, test := range []struct {
		name    string
		impair  Impairments
		right   bool // what arrives
		noticed bool
	}{
		{"corrupted", Impairments{Corrupt: 0.05}, true, true},
		{"tampered with", Impairments{Tamper: 0.05}, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := impairedPair(t, test.impair)
			right := n.Host("right")
			for _, addr := range []netip.Addr{right.Addr4(), right.Addr6()} {
				out, in := connect(t, n, addr, false)
				go func() {
					_, _ = out.Write(data) // what arrives is judged
					out.Close()
				}()
				got, err := io.ReadAll(in)
				if err != nil || len(got) != len(data) || bytes.Equal(got, data) != test.right {
					t.Errorf("over %v: %d bytes arrive, %v; that they are right is %v", addr, len(got), err, bytes.Equal(got, data))
				}
			}
			if noticed := counter(t, right, "TcpInCsumErrors") > 0; noticed != test.noticed {
				t.Errorf("that TCP noticed is %v", noticed)
			}
			ab, ba, err := n.LinkStats("line")
			if err != nil || ab.Corrupted+ab.Tampered == 0 || (ab.Tampered == 0) != test.noticed || ba.Tampered+ba.Corrupted > 0 {
				t.Errorf("counted %+v and %+v, %v", ab, ba, err)
			}
		})
	}
}

// MPTCP's checksum notices what TCP's does not, where it is in use.
func TestMPTCPNoticesTampering(t *testing.T) {
	n := impairedPair(t, Impairments{Tamper: 0.05})
	for _, name := range []string{"left", "right"} {
		if err := n.Host(name).Sysctl("net.mptcp.checksum_enabled", "1"); err != nil {
			t.Fatal(err)
		}
	}
	right := n.Host("right")
	out, in := connect(t, n, right.Addr4(), true)
	go func() { _, _ = out.Write(make([]byte, 1<<20)) }()
	go func() { _, _ = io.Copy(io.Discard, in) }()
	deadline := time.Now().Add(time.Minute)
	for counter(t, right, "MPTcpExtDataCsumErr") == 0 {
		if time.Now().After(deadline) {
			t.Fatal("nothing was noticed")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if noticed := counter(t, right, "TcpInCsumErrors"); noticed > 0 {
		t.Errorf("TCP noticed %d", noticed)
	}
}

// TestReorderedAndDuplicated turns on reordering and duplication on a running link.
func TestReorderedAndDuplicated(t *testing.T) {
	n := build(t, pair(BackendEmulator, LinkParams{}))
	addr := echo(t, n.Host("right"))
	conn := dialUDP(t, n.Host("left"), addr)
	if _, err := ask(conn, "before", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := n.SetLink("line", LinkParams{Impairments: Impairments{Duplicate: 1}}, LinkParams{}); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(conn, "twice", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, conn); got != "twice" {
		t.Errorf("then came %q, want the copy", got)
	}
	held := LinkParams{Impairments: Impairments{Reorder: 1, ReorderBy: 300 * time.Millisecond}}
	if err := n.SetLink("line", held, LinkParams{}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	for n.holding(t) == 0 { // until it is held back
		time.Sleep(time.Millisecond)
	}
	if err := n.SetLink("line", LinkParams{}, LinkParams{}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("second")); err != nil {
		t.Fatal(err)
	}
	if one, two := receive(t, conn), receive(t, conn); one != "second" || two != "first" {
		t.Errorf("came %q, then %q", one, two)
	}
}

func (n *Network) holding(t *testing.T) uint64 {
	t.Helper()
	ab, _, err := n.LinkStats("line")
	if err != nil {
		t.Fatal(err)
	}
	return ab.Reordered
}

func receive(t *testing.T, conn *net.UDPConn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var data [2000]byte
	n, err := conn.Read(data[:])
	if err != nil {
		t.Fatal(err)
	}
	return string(data[:n])
}

// netem's impairments follow other models, so the netem backend implements none of them.
func TestImpairmentsAreTheWires(t *testing.T) {
	impaired := LinkParams{Impairments: Impairments{Tamper: 0.1}}
	if n := build(t, pair(BackendAuto, impaired)); n.Backend() != BackendEmulator {
		t.Errorf("it chose %q", n.Backend())
	}
	if err := pair(BackendNetem, impaired).Validate(); err == nil || !strings.Contains(err.Error(), `use backend "wire"`) {
		t.Errorf("asked of netem, it gives %v", err)
	}
	for _, backend := range backends(t) {
		n := build(t, pair(backend, LinkParams{}))
		if err := n.SetLink("line", impaired, LinkParams{}); (err == nil) != (backend == BackendEmulator) {
			t.Errorf("set while %s runs, it gives %v", backend, err)
		}
	}
}
