package waypoint

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
)

// All members share the cap, and each direction has its own. Bounds are loose: the kernel's bucket holds what
// passes in a second and an eighth, and the test must pass on a slow machine.
func TestBandwidthOfAllMembers(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	const rate = 1 << 20
	n.config.Bandwidth = rate
	server := n.echo(t, "10.2.0.1:443")
	server6 := n.echo(t, "[fd02::1]:443")
	w, _ := n.start(t)
	mustMap(t, w, peer("alice", client4), server, 443)
	mustMap(t, w, peer("bob", client6), server6, 443)
	conns := []*conn{n.mustDial(t, netip.AddrPortFrom(waypoint4, 443)), n.mustDial(t, netip.AddrPortFrom(waypoint6, 443))}
	const each = 2 * rate // and as much comes back
	begin := time.Now()
	var talking errgroup.Group
	for _, c := range conns {
		talking.Go(func() error { return c.talk(each) })
	}
	if err := talking.Wait(); err != nil {
		t.Fatal(err)
	}
	// 4 s worth of bytes in each direction, less the bucket; of members apart it would be one.
	if took := time.Since(begin); took < 2500*time.Millisecond {
		t.Errorf("%d bytes of two members took %v at %d bytes/s", each, took, rate)
	}
	for _, direction := range []string{"original", "reply"} {
		list := n.waypoint.Output(t, "nft", "list", "chain", "inet", "dcol", "ours")
		if !strings.Contains(list, "ct direction "+direction+" limit rate over 1 mbytes/second burst 128 kbytes") {
			t.Errorf("%s has no limit:\n%s", direction, list)
		}
	}
}

// The two directions have separate caps: uploads do not slow down downloads.
func TestDirectionsAreCappedApart(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.config.Bandwidth = 64 << 10
	w, _ := n.start(t)
	listener := n.server.Listen(t, "10.2.0.1:443")
	mustMap(t, w, peer("alice", client4), netip.MustParseAddrPort("10.2.0.1:443"), 443)
	c, err := n.client.Dial(t.Context(), netip.AddrPortFrom(waypoint4, 443))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// The client fills its direction for a minute and more.
	go func() { _, _ = c.Write(make([]byte, 8<<20)) }()
	if _, err := io.CopyN(io.Discard, s, 256<<10); err != nil {
		t.Fatal(err)
	}
	used := n.dropsOf(t, "original")
	if used == 0 {
		t.Error("the client's direction is not full")
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	go func() { _, _ = s.Write(make([]byte, 32<<10)) }() // less than the bucket
	if _, err := io.CopyN(io.Discard, c, 32<<10); err != nil {
		t.Fatal(err)
	}
	if drops := n.dropsOf(t, "reply"); drops > 0 {
		t.Errorf("%d packets to the client were dropped", drops)
	}
}

// dropsOf counts packets that the cap of a direction dropped.
func (n *network) dropsOf(t *testing.T, direction string) int {
	t.Helper()
	for line := range strings.Lines(n.waypoint.Output(t, "nft", "list", "chain", "inet", "dcol", "ours")) {
		if _, rest, ok := strings.Cut(line, "ct direction "+direction); ok {
			_, rest, _ = strings.Cut(rest, "counter packets ")
			return atoi(t, strings.Fields(rest)[0])
		}
	}
	t.Fatalf("there is no cap of direction %s", direction)
	return 0
}

func atoi(t *testing.T, text string) (n int) {
	t.Helper()
	for _, digit := range text {
		if digit < '0' || digit > '9' {
			t.Fatalf("%q is not a number", text)
		}
		n = 10*n + int(digit-'0')
	}
	return n
}

// While the waypoint is closed, no kind of detour opens a connection, with or without an agent, and open ones
// continue.
func TestClosedInTheKernel(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	server, server6 := n.echo(t, "10.2.0.1:443"), n.echo(t, "[fd02::1]:443")
	w, stop := n.start(t)
	mustMap(t, w, peer("alice", client4), server, 443)
	mustMap(t, w, peer("alice", client6), server6, 443)
	ports := []netip.AddrPort{netip.AddrPortFrom(waypoint4, 443), netip.AddrPortFrom(waypoint6, 443)}
	open := []*conn{n.mustDial(t, ports[0]), n.mustDial(t, ports[1])}
	if err := w.SwitchOff(time.Time{}); err != nil {
		t.Fatal(err)
	}
	closed := func(when string) {
		t.Helper()
		for i, to := range ports {
			if _, err := n.dial(t, to); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s, to %v: %v", when, to, err)
			}
			if err := open[i].talk(100_000); err != nil {
				t.Errorf("%s, the open connection to %v: %v", when, to, err)
			}
		}
	}
	closed("off")
	if got := refusal(t, w, peer("alice", client4), server); got != wire.SwitchedOff {
		t.Errorf("a request: %v", got)
	}
	stop()
	closed("without an agent")
	w, _ = n.start(t)
	closed("with the next agent")
	n.waypoint.Output(t, "nft", "flush", "ruleset")
	eventually(t, "the table is back", func() bool { return strings.Contains(n.waypoint.Output(t, "nft", "list", "tables"), "dcol") })
	closed("after somebody flushed the table")
	if err := w.SwitchOn(); err != nil {
		t.Fatal(err)
	}
	for _, to := range ports {
		n.mustDial(t, to)
	}
	if err := w.SwitchOff(time.Now().Add(1500 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it gives again by itself", func() bool {
		_, err := n.dial(t, ports[0])
		return err == nil
	})
}

func TestClosedInBand(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, w, _, grant := startInBand(t, mode)
			server := p.echo(t, "10.2.0.1:443")
			if err := w.SwitchOff(time.Time{}); err != nil {
				t.Fatal(err)
			}
			if got := p.probe(t, p.syn(server, grant)); got != byNobody {
				t.Errorf("while it is off: %s", got)
			}
			if refusal := inBandRefusal(t, w, overSession("alice", client4, 1)); refusal.Code != wire.SwitchedOff {
				t.Errorf("asked while it is off: %v", refusal)
			}
			if err := w.SwitchOn(); err != nil {
				t.Fatal(err)
			}
			if got := p.probe(t, p.syn(server, grant)); got != byServer {
				t.Errorf("when it is on again: %s", got)
			}
		})
	}
}

func TestClosedTunnel(t *testing.T) {
	t.Parallel()
	n, w := startTunnel(t)
	server := n.echo(t, "10.2.0.1:443")
	open, err := n.from(t, tunnel4, server)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.SwitchOff(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.from(t, tunnel4, server); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a new connection: %v", err)
	}
	admit(t, w, time.Minute) // a renewal
	_ = open.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(open, make([]byte, 10)); err != nil { // of the echo server's first line
		t.Errorf("the open connection: %v", err)
	}
}

// Nothing beyond the quota is forwarded, and each end of a connection learns that it has ended as soon as it
// sends, with or without an agent.
func TestQuotaInTheKernel(t *testing.T) {
	for _, agent := range []string{"with an agent", "without an agent"} {
		t.Run(agent, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			const quota = 4 << 20
			n.config.Quota = quota
			listener := n.server.Listen(t, "10.2.0.1:443")
			w, stop := n.start(t)
			mustMap(t, w, peer("alice", client4), netip.MustParseAddrPort("10.2.0.1:443"), 443)
			c, s := n.pair(t, listener, netip.AddrPortFrom(waypoint4, 443))
			idle, idleServer := n.pair(t, listener, netip.AddrPortFrom(waypoint4, 443))
			if agent == "without an agent" {
				stop()
			}
			// Both send continuously, and count what arrives.
			var arrived [2]int64
			var ends errgroup.Group
			for i, end := range []net.Conn{c, s} {
				_ = end.SetDeadline(time.Now().Add(20 * time.Second))
				ends.Go(func() error {
					n, err := end.Write(make([]byte, 4*quota))
					return wantReset(n, err)
				})
				ends.Go(func() error {
					arrived[i], _ = io.Copy(io.Discard, end) // either writing or reading reports the reset, not both
					return nil
				})
			}
			if err := ends.Wait(); err != nil {
				t.Error(err)
			}
			if got := arrived[0] + arrived[1]; got > quota || got < quota/2 {
				t.Errorf("%d bytes were forwarded at a quota of %d", got, quota)
			}
			for _, end := range []net.Conn{idle, idleServer} {
				_ = end.SetDeadline(time.Now().Add(20 * time.Second))
				_, err := end.Write([]byte("x"))
				if err == nil {
					_, err = end.Read(make([]byte, 1))
				}
				if err := wantReset(0, err); err != nil {
					t.Errorf("a connection that was idle: %v", err)
				}
			}
			if agent == "without an agent" {
				w, _ = n.start(t)
			}
			var snap Snapshot
			eventually(t, "the waypoint is closed", func() bool {
				var err error
				if snap, err = w.Snapshot(); err != nil {
					t.Fatal(err)
				}
				return snap.Giving.Closed()
			})
			if g := snap.Giving; g.Cause != giving.QuotaUsed || g.Used != quota || !g.Until.Equal(giving.NextMonth(time.Now())) {
				t.Errorf("given %+v", g)
			}
			if got := refusal(t, w, peer("alice", client4), netip.MustParseAddrPort("10.2.0.1:443")); got != wire.QuotaTraffic {
				t.Errorf("a request: %v", got)
			}
			if _, err := n.client.Dial(t.Context(), netip.AddrPortFrom(waypoint4, 443)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("a new connection: %v", err)
			}
			eventually(t, "no connection is left", func() bool {
				return strings.Contains(n.waypoint.Output(t, "conntrack", "-L", "-m", "0x80000000/0x80000000"), " 0 flow entries")
			})
			n.waitEntry(t, "the end of the connection", func(e attribution.Entry) bool { return e.Event == attribution.FlowClosed })
		})
	}
}

// Other packets than TCP, such as a connection's ICMP errors, are forwarded too, and so count.
func TestQuotaCountsErrors(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.config.Quota = 1 << 30
	w, _ := n.start(t)
	n.server.Output(t, "nft", "add table inet f; add chain inet f in { type filter hook input priority 0; }; "+
		"add rule inet f in tcp dport 443 reject with icmpx type port-unreachable")
	mustMap(t, w, peer("alice", client4), netip.MustParseAddrPort("10.2.0.1:443"), 443)
	if _, err := n.client.Dial(t.Context(), netip.AddrPortFrom(waypoint4, 443)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatalf("got %v", err)
	}
	const syn = 60
	eventually(t, "SYN and error are counted", func() bool {
		s, err := w.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		return s.Giving.Used > 2*syn // the error has the SYN in it
	})
}

// wantReset takes the result of a write that a reset must have ended.
func wantReset(n int, err error) error {
	if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return nil
	}
	return fmt.Errorf("%d bytes were written, and then: %w", n, err)
}

// pair is both ends of a connection.
func (n *network) pair(t *testing.T, l net.Listener, to netip.AddrPort) (client, server net.Conn) {
	t.Helper()
	client, err := n.client.Dial(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return client, server
}

// The count continues from the last agent's, over kills and flushed tables.
func TestQuotaIsCountedOn(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.config.Quota = 1 << 30
	server := n.echo(t, "10.2.0.1:443")
	w, stop := n.start(t)
	mustMap(t, w, peer("alice", client4), server, 443)
	c := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
	used := func() uint64 {
		t.Helper()
		s, err := w.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		return s.Giving.Used
	}
	if err := c.talk(1 << 20); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both directions are counted", func() bool { return used() >= 2<<20 })
	stop()
	if err := c.talk(1 << 20); err != nil {
		t.Fatal(err)
	}
	w, stop = n.start(t)
	before := used()
	if before < 4<<20 {
		t.Errorf("used %d", before)
	}
	n.waypoint.Output(t, "nft", "flush", "ruleset")
	eventually(t, "the table is back", func() bool { return strings.Contains(n.waypoint.Output(t, "nft", "list", "tables"), "dcol") })
	n.waypoint.Output(t, "nft", "flush", "chain", "inet", "dcol", "month")
	eventually(t, "the rule is back", func() bool { return strings.Contains(n.waypoint.Output(t, "nft", "list", "ruleset"), "quota over") })
	after := used()
	if after < before {
		t.Errorf("used %d, and then %d", before, after)
	}
	// It also continues from the last count before all traces were removed. This uses another connection: while
	// there were no rules, the last acknowledgement of the first may have reached the waypoint itself, which then
	// resets it.
	c = n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
	stop()
	if err := c.talk(1 << 20); err != nil {
		t.Fatal(err)
	}
	n.cleanUp(t)
	n.cleanUp(t)
	w, _ = n.start(t)
	if got := used(); got < after+2<<20 {
		t.Errorf("used %d, and after a clean-up %d", after, got)
	}
}
