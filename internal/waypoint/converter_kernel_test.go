package waypoint

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
)

var converterKey = cookie.Key{1, 2, 3}

// startConverter is a waypoint with a converter, for which convert connects.
func startConverter(t *testing.T) (*network, *Waypoint) {
	t.Helper()
	n := newNetwork(t)
	n.config.Converter = &Converter{Port: 5124, Key: converterKey}
	w, _ := n.start(t)
	return n, w
}

// startAdmitted is startConverter with an echo server at 10.2.0.1:443, the mark of alice's connections, and what stops the
// waypoint.
func startAdmitted(t *testing.T) (n *network, w *Waypoint, mark uint32, stop func()) {
	t.Helper()
	n = newNetwork(t)
	n.config.Converter = &Converter{Port: 5124, Key: converterKey}
	n.echo(t, "10.2.0.1:443")
	w, stop = n.start(t)
	w.SessionUp(overSession("alice", client4, 1))
	return n, w, admitted(t, w), stop
}

// admitted returns the mark of the converter's sockets for alice.
func admitted(t *testing.T, w *Waypoint) uint32 {
	t.Helper()
	grant, refusal := w.Converter(t.Context(), overSession("alice", client4, 1), wire.TunnelRequest{ID: 1, Kind: wire.Converter})
	if refusal != nil {
		t.Fatal(refusal)
	}
	if grant.Port != 5124 || grant.Lease <= 0 {
		t.Errorf("granted %+v", grant)
	}
	mark, err := converterKey.Open(grant.Cookie, client4, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return mark
}

// convert connects from the waypoint's host, as its converter does.
func (n *network) convert(t *testing.T, mark uint32, to string) (net.Conn, error) {
	t.Helper()
	d := net.Dialer{Timeout: 5 * time.Second, Control: func(_, _ string, c syscall.RawConn) error {
		var inner error
		err := c.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark)) })
		return errors.Join(err, inner)
	}}
	var c net.Conn
	err := n.waypoint.Do(func() (err error) {
		c, err = d.DialContext(context.Background(), "tcp", to)
		return err
	})
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// What the converter opens for a member passes the same policy and limits as a detour, and is attributed to it.
func TestConverterIsHeldToThePolicy(t *testing.T) {
	t.Parallel()
	n, w := startConverter(t)
	servers := []string{"10.2.0.1:443", "[fd02::1]:443"}
	denied := []string{"10.2.0.1:25", "[fd02::1]:25"}
	for _, at := range slices.Concat(servers, denied) {
		n.echo(t, at)
	}
	own := []string{"10.1.0.2:22", "[fd01::2]:22", "10.2.0.2:22", "[fd02::2]:22", "127.0.0.1:22", "[::1]:22"}
	for _, at := range own {
		n.waypoint.Listen(t, at)
	}
	private := []string{"10.1.0.1:443", "[fd01::1]:443"}
	for _, at := range private {
		n.client.Listen(t, at)
	}
	w.SessionUp(overSession("alice", client4, 1))
	mark := admitted(t, w)
	for _, to := range servers {
		c, err := n.convert(t, mark, to)
		if err != nil {
			t.Fatalf("%s: %v", to, err)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Errorf("no answer from %s: %v", to, err)
		}
	}
	eventually(t, "both are attributed to the member", func() bool {
		snap, err := w.Snapshot()
		return err == nil && len(snap.Members) == 1 && snap.Members[0].Flows == 2
	})
	for _, to := range slices.Concat(denied, own, private) {
		if _, err := n.convert(t, mark, to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %v, want a refusal", to, err)
		}
		if _, err := n.convert(t, 0, to); err != nil {
			t.Errorf("%s, for the host itself: %v", to, err)
		}
	}
	other := w.loop.config.marks().Mark(2, wire.Converter)
	for _, to := range servers {
		if _, err := n.convert(t, other, to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s, for a member that has no grant: %v", to, err)
		}
	}
}

// Converted connections count against a member's number of connections together with its detours, and against the month's
// bytes. When these are used up, the converter's sockets are reset, whether they send or only receive.
func TestConvertedCountAgainstQuotas(t *testing.T) {
	const quota = 1 << 20
	for name, use := range map[string]func(c, server net.Conn) error{
		"sending": func(c, server net.Conn) error {
			go func() { _, _ = io.Copy(io.Discard, server) }()
			n, err := c.Write(make([]byte, 4*quota))
			return wantReset(n, err)
		},
		"receiving": func(c, server net.Conn) error {
			go func() { _, _ = server.Write(make([]byte, 4*quota)) }()
			n, err := io.Copy(io.Discard, c)
			return wantReset(int(n), err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			n.config.Converter = &Converter{Port: 5124, Key: converterKey}
			n.config.ConnectionsPerMember, n.config.Quota = 2, quota
			listener := n.server.Listen(t, "10.2.0.1:443")
			w, _ := n.start(t)
			alice := overSession("alice", client4, 1)
			w.SessionUp(alice)
			mark := admitted(t, w)
			mustMap(t, w, alice, netip.MustParseAddrPort("10.2.0.1:443"), 443)
			n.pair(t, listener, netip.AddrPortFrom(waypoint4, 443)) // a detour
			c, err := n.convert(t, mark, "10.2.0.1:443")
			if err != nil {
				t.Fatal(err)
			}
			server, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			if _, err := n.convert(t, mark, "10.2.0.1:443"); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("the third connection: %v", err)
			}
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			if err := use(c, server); err != nil {
				t.Error(err)
			}
			eventually(t, "the waypoint is closed", func() bool {
				snap, err := w.Snapshot()
				return err == nil && snap.Giving.Cause == giving.QuotaUsed && snap.Giving.Used == quota
			})
			if _, err := n.convert(t, mark, "10.2.0.1:443"); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("a connection beyond the month's quota: %v", err)
			}
		})
	}
}

// When a member's own quota is used up, its converted connections end, also those that only receive.
func TestSpentMemberIsNotConverted(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.config.Converter = &Converter{Port: 5124, Key: converterKey}
	n.config.Members = map[string]MemberTerms{"alice": {Quota: 1000}}
	listener := n.server.Listen(t, "10.2.0.1:443")
	w, _ := n.start(t)
	w.SessionUp(overSession("alice", client4, 1))
	mark := admitted(t, w)
	c, err := n.convert(t, mark, "10.2.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for err := error(nil); err == nil; time.Sleep(10 * time.Millisecond) {
			_, err = server.Write([]byte("news"))
		}
	}()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(c, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := w.ask(func() {
		w.loop.limited.count(map[string]uint64{"alice": 2000}, time.Now())
		w.loop.checkLimited(time.Now())
	}); err != nil {
		t.Fatal(err)
	}
	got, err := io.Copy(io.Discard, c)
	if err := wantReset(int(got), err); err != nil {
		t.Error(err)
	}
	if _, err := n.convert(t, mark, "10.2.0.1:443"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("another connection: %v", err)
	}
}

// Expelling a member ends its converted connections, too, and lets it open no others.
func TestExpelledFromConverter(t *testing.T) {
	t.Parallel()
	n, w, mark, _ := startAdmitted(t)
	c, err := n.convert(t, mark, "10.2.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Expel("alice"); err != nil {
		t.Fatal(err)
	}
	wantRejected(t, c)
	if _, err := n.convert(t, mark, "10.2.0.1:443"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a new connection: %v", err)
	}
}

// If the table was lost, and its leases with it, packets of the converter's connections wait for the members to return. Those
// of a member that is expelled meanwhile are rejected at once.
func TestExpelledAfterTheTable(t *testing.T) {
	t.Parallel()
	n, _, mark, stop := startAdmitted(t)
	c, err := n.convert(t, mark, "10.2.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	stop()
	n.waypoint.Output(t, "nft", "flush", "ruleset")
	w, _ := n.start(t)
	w.SessionUp(overSession("alice", client4, 1)) // and asks for no converter yet
	if err := w.Expel("alice"); err != nil {
		t.Fatal(err)
	}
	wantRejected(t, c)
}

// wantRejected fails the test unless the waypoint rejects a connection's next packets, before it would have waited for members
// for long enough.
func wantRejected(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(returning / 2))
	sent := 0
	var err error
	for ; err == nil; time.Sleep(20 * time.Millisecond) { // the first packet is rejected, and the next call fails
		if _, err = c.Write([]byte("x")); err == nil {
			sent++
		}
	}
	if err := wantReset(sent, err); err != nil {
		t.Error(err)
	}
}

// A grant outlives a restart of the agent.
func TestConverterGrantIsAdopted(t *testing.T) {
	t.Parallel()
	n, _, mark, stop := startAdmitted(t)
	stop()
	if _, err := n.convert(t, mark, "10.2.0.1:443"); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	n.start(t)
	if _, err := n.convert(t, mark, "10.2.0.1:443"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

// Without a converter, none is granted.
func TestNoConverter(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	w, _ := n.start(t)
	_, refusal := w.Converter(t.Context(), overSession("alice", client4, 1), wire.TunnelRequest{ID: 7, Kind: wire.Converter})
	if refusal == nil || refusal.Code != wire.NotOffered {
		t.Errorf("%v", refusal)
	}
}

// Connections of the converter outlive the loss of the table, also of one that an agent finds gone when it starts: those
// that were open, with whatever they carry meanwhile, and those that begin while it is missing.
func TestConvertedOutliveTheTable(t *testing.T) {
	t.Parallel()
	n, _, mark, stop := startAdmitted(t)
	begin := func() net.Conn {
		t.Helper()
		c, err := n.convert(t, mark, "10.2.0.1:443")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(60 * time.Second))
		return c
	}
	before := begin()
	carry(t, before, 1)
	stop()
	n.waypoint.Output(t, "nft", "flush", "ruleset")
	meanwhile := begin()
	carry(t, before, 16<<20) // more than any window that conntrack has seen
	carry(t, meanwhile, 1)
	w, _ := n.start(t)
	carried := make(chan struct{})
	go func() {
		defer close(carried)
		carry(t, before, 1<<20)
		carry(t, meanwhile, 1<<20)
	}()
	eventually(t, "packets wait for the member", func() bool {
		return strings.Contains(n.waypoint.Output(t, "nft", "list", "chain", "inet", "dcol", "converting"), "@awaited counter packets") &&
			!strings.Contains(n.waypoint.Output(t, "nft", "list", "chain", "inet", "dcol", "converting"), "@awaited counter packets 0 ")
	})
	w.SessionUp(overSession("bob", client4, 2))
	if _, refusal := w.Converter(t.Context(), overSession("bob", client4, 2), wire.TunnelRequest{ID: 1, Kind: wire.Converter}); refusal != nil {
		t.Fatal(refusal)
	}
	w.SessionUp(overSession("alice", client4, 1))
	if again := admitted(t, w); again != mark {
		t.Errorf("the member's mark was %#x and is %#x", mark, again)
	}
	<-carried
}

// A connection of the converter can be closed after conntrack has forgotten it, although conntrack begins no entry with a
// FIN.
func TestConvertedIsClosedAfterTheTable(t *testing.T) {
	t.Parallel()
	n, _, mark, stop := startAdmitted(t)
	c, err := n.convert(t, mark, "10.2.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(12 * time.Second)) // before the server's keep-alive has conntrack begin an entry
	carry(t, c, 1)
	stop()
	n.waypoint.Output(t, "nft", "flush", "ruleset")
	w, _ := n.start(t)
	w.SessionUp(overSession("alice", client4, 1))
	admitted(t, w)
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("the server's end: %v", err)
	}
}

// carry sends bytes and reads their echo.
func carry(t *testing.T, c net.Conn, bytes int64) {
	t.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(c, zeros{}, bytes)
		sent <- err
	}()
	_, err := io.CopyN(io.Discard, c, bytes)
	if err := errors.Join(err, <-sent); err != nil {
		t.Errorf("%d bytes do not come back: %v", bytes, err)
	}
}

// zeros reads as zeros without end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
