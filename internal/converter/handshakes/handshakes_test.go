package handshakes

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

var update = flag.Bool("update", false, "write the golden file anew")

// Ports of the server.
const (
	plainPort  = 80
	speaksPort = 81
)

// watched is a host with the table.
type watched struct {
	*testing.T
	host  *netnstest.NS
	table *Table
}

// net2 is a host with the table, and a server.
type net2 struct {
	watched
	server *netnstest.NS
}

func newNet(t *testing.T, x Exclude) *net2 {
	t.Helper()
	n := &net2{watched{T: t, host: netnstest.New(t)}, netnstest.New(t)}
	netnstest.Veth(t,
		netnstest.End{NS: n.host, Name: "eth0", Addresses: []string{"10.2.0.1/24", "fd02::1/64"}},
		netnstest.End{NS: n.server, Name: "eth0", Addresses: []string{"10.2.0.2/24", "10.2.0.3/24", "fd02::2/64", "fd02::3/64"}})
	n.serve(n.server, ":80", false)
	n.serve(n.server, ":81", true)
	n.open(x)
	return n
}

// open installs the table.
func (w *watched) open(x Exclude) {
	w.Helper()
	w.host.Must(w.T, func() (err error) { w.table, err = Open(x); return err })
	t := w.table
	w.Cleanup(func() { _ = t.Close() })
}

// serve sends a kilobyte to whoever connects, and hangs up.
func (n *net2) serve(ns *netnstest.NS, address string, mptcp bool) net.Listener {
	n.Helper()
	config := net.ListenConfig{}
	config.SetMultipathTCP(mptcp)
	var l net.Listener
	ns.Must(n.T, func() (err error) { l, err = config.Listen(context.Background(), "tcp", address); return err })
	netnstest.Serve(n.T, l, func(c *net.TCPConn) { _, _ = c.Write(make([]byte, 1000)) })
	return l
}

// fetch makes one short connection.
func (n *net2) fetch(mptcp bool, to netip.AddrPort) {
	n.Helper()
	d := net.Dialer{Timeout: 20 * time.Second}
	d.SetMultipathTCP(mptcp)
	var c net.Conn
	n.host.Must(n.T, func() (err error) { c, err = d.DialContext(n.Context(), "tcp", to.String()); return err })
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if got, err := io.ReadAll(c); len(got) != 1000 || err != nil {
		n.Fatalf("%d bytes from %v, %v", len(got), to, err)
	}
}

// expect checks whether a server is known to be plain.
func (w *watched) expect(plain bool, server netip.AddrPort, why string) {
	w.Helper()
	at, is, err := w.table.Plain(server)
	if err != nil {
		w.Fatal(err)
	}
	if is != plain || is && (time.Since(at) < 0 || time.Since(at) > time.Minute) {
		w.Errorf("%v is plain: %t (%v ago), want %t: %s\n%s", server, is, time.Since(at), plain, why, w.host.Output(w.T, "nft", "list", "ruleset"))
	}
}

var both = []netip.Addr{netip.MustParseAddr("10.2.0.2"), netip.MustParseAddr("fd02::2")}

// One short connection shows that a server is plain. One that speaks MPTCP, or that was not offered it, shows nothing.
func TestOneShortConnection(t *testing.T) {
	t.Parallel()
	n := newNet(t, Exclude{})
	for _, addr := range both {
		plain, speaks := netip.AddrPortFrom(addr, plainPort), netip.AddrPortFrom(addr, speaksPort)
		n.fetch(false, plain)
		n.expect(false, plain, "MPTCP was not offered")
		n.fetch(true, plain)
		n.expect(true, plain, "it did not accept")
		n.fetch(true, speaks)
		n.expect(false, speaks, "it accepted")
	}
	n.expect(true, netip.AddrPortFrom(netip.MustParseAddr("::ffff:10.2.0.2"), plainPort), "the same server, as an IPv6 socket names it")
	all, err := n.table.All()
	if err != nil || len(all) != 2 {
		t.Errorf("all are %v, %v", all, err)
	}
	for _, addr := range both {
		if at := all[netip.AddrPortFrom(addr, plainPort)]; time.Since(at) < 0 || time.Since(at) > time.Minute {
			t.Errorf("%v is plain since %v", addr, at)
		}
	}
}

// A server that speaks MPTCP now is no longer known as plain, and one that has ceased to is.
func TestServerChanges(t *testing.T) {
	t.Parallel()
	n := newNet(t, Exclude{})
	server := netip.MustParseAddrPort("10.2.0.2:82")
	for _, speaks := range []bool{false, true, false} {
		l := n.serve(n.server, ":82", speaks)
		n.fetch(true, server)
		n.expect(!speaks, server, fmt.Sprintf("it speaks MPTCP: %t", speaks))
		l.Close()
	}
}

// What is known of a server is forgotten, and learned again. Each connection renews it.
func TestServerIsLearnedAgain(t *testing.T) {
	t.Parallel()
	n := newNet(t, Exclude{})
	for i, addr := range both {
		server := netip.AddrPortFrom(addr, plainPort)
		_, key := familyOf(server)
		n.fetch(true, server)
		soon := nft.Element{Key: key, Timeout: time.Second}
		err := n.table.conn.Commit("let it expire soon", func(tx *nft.Tx) {
			tx.DeleteElements(table, families[i].plain, []nft.Element{soon})
			tx.AddElements(table, families[i].plain, []nft.Element{soon})
		})
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if _, is, err := n.table.Plain(server); err != nil || !is {
				break
			}
			if time.Now().After(end) {
				t.Fatal("it is not forgotten")
			}
		}
		n.expect(false, server, "its entry has expired")
		n.fetch(true, server)
		n.expect(true, server, "it did not accept again")
	}
}

// If SYNs with MPTCP are lost, the kernel sends one without. The answer to that shows nothing about the server.
func TestFallbackOfRetransmission(t *testing.T) {
	t.Parallel()
	if netnstest.KernelBefore(t, 6, 12) {
		t.Skip("this kernel repeats SYNs with MPTCP for at least 20 s")
	}
	n := newNet(t, Exclude{})
	n.server.Output(t, "nft", "table inet cut { chain input { type filter hook input priority 0; tcp flags syn tcp option mptcp exists counter drop; }; }")
	n.host.Output(t, "sysctl", "-qw", "net.mptcp.blackhole_timeout=0") // else the kernel offers no MPTCP any more
	for _, addr := range both {
		server := netip.AddrPortFrom(addr, plainPort)
		n.fetch(true, server)
		n.expect(false, server, "it answered a SYN without MPTCP")
	}
	if rules := n.server.Output(t, "nft", "list", "chain", "inet", "cut", "input"); strings.Contains(rules, "packets 0 ") {
		t.Errorf("no SYN with MPTCP was lost: %s", rules)
	}
}

// Nothing is learned about this host, nor about what is excluded, now or later.
func TestExcluded(t *testing.T) {
	t.Parallel()
	x := Exclude{Networks: []netip.Prefix{netip.MustParsePrefix("10.2.0.3/32"), netip.MustParsePrefix("fd02::3/128")}}
	n := newNet(t, x)
	n.serve(n.host, ":80", false)
	fetch := func(addr string, plain bool) {
		t.Helper()
		server := netip.AddrPortFrom(netip.MustParseAddr(addr), plainPort)
		n.fetch(true, server)
		n.expect(plain, server, "excluded are "+strings.Join(strings.Fields(n.host.Output(t, "nft", "list", "sets")), " "))
	}
	for _, addr := range []string{"10.2.0.1", "fd02::1", "127.0.0.1", "::1", "10.2.0.3", "fd02::3"} {
		fetch(addr, false)
	}
	n.host.Must(t, func() error {
		return n.table.Exclude(Exclude{Networks: []netip.Prefix{netip.MustParsePrefix("10.2.0.2/32")}})
	})
	fetch("10.2.0.2", false)
	fetch("10.2.0.3", true)
	n.host.Must(t, func() error { return n.table.Exclude(Exclude{Ports: []uint16{plainPort}}) })
	fetch("fd02::2", false)
	n.host.Must(t, func() error { return n.table.Exclude(Exclude{}) })
	fetch("fd02::2", true)
	fetch("fd02::1", false)
}

// Other programs cannot remove the table, and it ends with its owner.
func TestOwned(t *testing.T) {
	t.Parallel()
	n := newNet(t, Exclude{})
	server := netip.AddrPortFrom(both[0], plainPort)
	n.host.Output(t, "nft", "flush ruleset")
	n.fetch(true, server)
	n.expect(true, server, "it did not accept")
	for range 2 {
		if err := n.table.Close(); err != nil {
			t.Fatal(err)
		}
		if left := n.host.Output(t, "nft", "list", "tables"); left != "" {
			t.Errorf("left behind: %s", left)
		}
	}
	if _, _, err := n.table.Plain(server); err == nil {
		t.Error("a closed table answers")
	}
}

// Each host has a table of its own, also if one process has both.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	a, b := newNet(t, Exclude{}), newNet(t, Exclude{})
	server := netip.AddrPortFrom(both[0], plainPort) // of each network
	a.fetch(true, server)
	a.expect(true, server, "it did not accept")
	b.expect(false, server, "another host has learned that")
	if err := a.table.Close(); err != nil {
		t.Fatal(err)
	}
	b.fetch(true, server)
	b.expect(true, server, "it did not accept")
}

// The kernel removes the table of a process that is killed, and the next one starts with an empty table.
func TestOwnerIsKilled(t *testing.T) {
	t.Parallel()
	n := newNet(t, Exclude{})
	if err := n.table.Close(); err != nil {
		t.Fatal(err)
	}
	owner := exec.Command("/proc/self/exe", "own")
	owner.Stderr = os.Stderr
	_, out := n.host.Start(t, owner, "")
	if _, err := io.ReadFull(out, make([]byte, len(owns))); err != nil {
		t.Fatal(err)
	}
	server := netip.AddrPortFrom(both[0], plainPort)
	n.fetch(true, server)
	if list := n.host.Output(t, "nft", "list", "set", "inet", table.Name, "plain4"); !strings.Contains(list, "10.2.0.2 . 80") {
		t.Errorf("the other process has learned nothing: %s", list)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	if left := n.host.Output(t, "nft", "list", "tables"); left != "" {
		t.Errorf("left behind: %s", left)
	}
	n.open(Exclude{})
	n.expect(false, server, "the table is new")
	n.fetch(true, server)
	n.expect(true, server, "it did not accept")
}

// owns is the line that a process prints when it has installed the table.
const owns = "owns\n"

// TestMain makes the test binary such a process if its argument is own.
func TestMain(m *testing.M) {
	if len(os.Args) != 2 || os.Args[1] != "own" {
		os.Exit(m.Run())
	}
	if _, err := Open(Exclude{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(owns)
	_, _ = os.Stdin.Read(make([]byte, 1)) // until it is killed
}

// TestTable compares the table with what nft prints, so that a person can read it.
func TestTable(t *testing.T) {
	t.Parallel()
	n := newNet(t, Exclude{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fc00::/7")}, Ports: []uint16{25}})
	got := n.host.Table(t, table.Name)
	_, got, _ = strings.Cut(got, "\n") // nft names the owner's process in the first line, or before it
	if i := strings.Index(got, "\tflags owner"); i >= 0 {
		got = got[i:]
	}
	netnstest.CompareTable(t, "testdata/table.nft", got, *update)
}
