package waypoint

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/flows"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// talker is a connection that can talk.
type talker interface{ talk(bytes int) error }

// waitFast waits until so many connections are on the fast path, while some talk: a connection that is
// silent does not get there.
func waitFast(t testing.TB, w *Waypoint, n int, talkers ...talker) {
	t.Helper()
	eventually(t, "the connections are on the fast path", func() bool {
		for _, c := range talkers {
			if err := c.talk(10); err != nil {
				t.Fatal(err)
			}
		}
		s, err := w.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if s.Fast == nil {
			t.Skip("this kernel has no fast path")
		}
		return *s.Fast == n
	})
}

// ends are both ends of a connection.
type ends struct{ client, server net.Conn }

func (e ends) talk(size int) error {
	for _, way := range [][2]net.Conn{{e.client, e.server}, {e.server, e.client}} {
		if _, err := way[0].Write(make([]byte, size)); err != nil {
			return err
		}
		if _, err := io.ReadFull(way[1], make([]byte, size)); err != nil {
			return err
		}
	}
	return nil
}

// tracked returns conntrack's entries of our connections.
func (n *network) tracked(t testing.TB) (list []netstate.Flow) {
	t.Helper()
	n.waypoint.Must(t, func() error {
		ct, err := netstate.OpenConntrack()
		if err != nil {
			return err
		}
		return errors.Join(ct.Flows(rules.DefaultMarks.Ours(), func(f netstate.Flow) { list = append(list, f) }), ct.Close())
	})
	return list
}

// forget makes conntrack forget our connections, and returns the log's last words on one.
func (n *network) forget(t testing.TB) attribution.Entry {
	t.Helper()
	n.waypoint.Must(t, func() error {
		ct, err := netstate.OpenConntrack()
		if err != nil {
			return err
		}
		return errors.Join(ct.Delete(rules.DefaultMarks.Ours()), ct.Close())
	})
	return n.waitEntry(t, "flow-closed", func(e attribution.Entry) bool { return e.Event == attribution.FlowClosed })
}

// Data passes by netfilter, and is counted; the end of the connection does not.
func TestFastPath(t *testing.T) {
	for name, c := range map[string]struct {
		client, waypoint netip.Addr
		listen           string
	}{
		"IPv4": {client4, waypoint4, "10.2.0.1:443"},
		"IPv6": {client6, waypoint6, "[fd02::1]:443"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			server := n.echo(t, c.listen)
			w, _ := n.start(t)
			mustMap(t, w, peer("alice", c.client), server, 443)
			through := n.mustDial(t, netip.AddrPortFrom(c.waypoint, 443))
			waitFast(t, w, 1, through)
			const size = 20 << 20
			if err := through.talk(size); err != nil {
				t.Fatal(err)
			}
			if list := n.tracked(t); len(list) != 1 || list[0].BytesOrigin > size/10 || list[0].BytesReply > size/10 {
				t.Errorf("netfilter has seen %+v", list)
			}
			s, err := w.Snapshot()
			if err != nil || s.Members[0].BytesFromClient < size || s.Members[0].BytesToClient < size {
				t.Errorf("snapshot %+v, %v", s, err)
			}

			through.Close()
			eventually(t, "netfilter has seen the end", func() bool {
				list := n.tracked(t)
				return len(list) == 1 && !list[0].Established
			})
			closed := n.forget(t)
			const most = size + size/10 // with headers and acknowledgements
			if *closed.BytesFromClient < size || *closed.BytesFromClient > most || *closed.BytesToClient < size || *closed.BytesToClient > most {
				t.Errorf("the log has %d and %d bytes", *closed.BytesFromClient, *closed.BytesToClient)
			}
			waitFast(t, w, 0)
		})
	}
}

// A member that is expelled or moves is cut off at once, on the fast path too.
func TestFastPathIsRevoked(t *testing.T) {
	for name, revoke := range map[string]func(*Waypoint) error{
		"expelled": func(w *Waypoint) error { return w.Expel("alice") },
		"moved": func(w *Waypoint) error {
			w.SessionMoved(overSession("alice", client4, 1), overSession("alice", netip.MustParseAddr("10.1.0.11"), 1))
			return nil
		},
		"came back elsewhere": func(w *Waypoint) error {
			now := overSession("alice", netip.MustParseAddr("10.1.0.11"), 2)
			w.SessionUp(now)
			w.MemberLeft(now, client4) // but for one session
			if s, err := w.Snapshot(); err != nil || *s.Fast != 2 {
				return errors.Join(fmt.Errorf("with a session left: %+v", s), err)
			}
			w.SessionDown(overSession("alice", client4, 1))
			w.MemberLeft(now, client4)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			server := n.echo(t, "10.2.0.1:443")
			w, _ := n.start(t)
			w.SessionUp(overSession("alice", client4, 1))
			mustMap(t, w, peer("alice", client4), server, 443)
			mustMap(t, w, peer("bob", client4), server, 444)
			alices := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
			bobs := n.mustDial(t, netip.AddrPortFrom(waypoint4, 444))
			waitFast(t, w, 2, alices, bobs)
			if err := revoke(w); err != nil {
				t.Fatal(err)
			}
			// A late acknowledgement may begin a new entry, by a mapping that is still there.
			if list := slices.DeleteFunc(n.tracked(t), func(f netstate.Flow) bool { return f.BytesReply == 0 }); len(list) != 1 {
				t.Errorf("conntrack has %+v", list)
			}
			if s, err := w.Snapshot(); err != nil || *s.Fast != 1 {
				t.Errorf("snapshot %+v, %v", s, err)
			}
			_ = alices.SetDeadline(time.Now().Add(time.Second))
			if err := alices.talk(10); err == nil && name == "expelled" { // else the mapping is there for a new one
				t.Error("the connection goes on")
			}
			if err := bobs.talk(1 << 20); err != nil {
				t.Errorf("the other member's: %v", err)
			}
		})
	}
}

// A packet that has become too large for the way out is answered as a router does.
func TestFastPathSmallerMTU(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	server := n.echo(t, "10.2.0.1:443")
	w, _ := n.start(t)
	mustMap(t, w, peer("alice", client4), server, 443)
	c := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
	waitFast(t, w, 1, c)
	if err := c.talk(1 << 20); err != nil {
		t.Fatal(err)
	}
	n.server.Output(t, "ip", "link", "set", "eth0", "mtu", "1300")
	n.waypoint.Output(t, "ip", "link", "set", "eth1", "mtu", "1300")
	if err := c.talk(4 << 20); err != nil {
		t.Fatal(err)
	}
	if routes := n.client.Output(t, "ip", "route", "get", "10.1.0.2"); !strings.Contains(routes, "mtu 1300") {
		t.Errorf("the client did not learn of it: %s", routes)
	}
	if list := n.tracked(t); list[0].BytesOrigin > 3<<20 {
		t.Errorf("small packets too go through netfilter: %+v", list)
	}
}

// conntrack's timeouts are short here. It keeps the connections that are alive, and no others.
func TestFastPathKeepsEntries(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for timeouts")
	}
	t.Parallel()
	n := newNetwork(t)
	const timeout = 4 * time.Second
	n.waypoint.Must(t, func() error {
		events, err := netstate.SubscribeFlows(rules.DefaultMarks.Ours()) // loads conntrack
		if err != nil {
			return err
		}
		for _, key := range []string{timeoutEstablished, timeoutUnanswered, timeoutRetrying} {
			if err := netstate.SetSysctl(key, "4"); err != nil {
				return err
			}
		}
		return events.Close()
	})
	server := n.echo(t, "10.2.0.1:443")
	w, _ := n.start(t)
	mustMap(t, w, peer("alice", client4), server, 443)
	alive, idle := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443)), n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
	waitFast(t, w, 2, alive, idle)
	for start := time.Now(); time.Since(start) < 3*timeout; time.Sleep(timeout / 8) {
		if err := alive.talk(1000); err != nil {
			t.Fatal(err)
		}
	}
	list := n.tracked(t)
	if len(list) != 1 || list[0].Origin.Src.String() != alive.LocalAddr().String() {
		t.Errorf("conntrack has %+v, want that of %v", list, alive.LocalAddr())
	}
	waitFast(t, w, 1)
	idle.Close()
	eventually(t, "the other one is forgotten", func() bool { return len(n.tracked(t)) == 0 })
	waitFast(t, w, 0)
}

// The waypoint does not prolong a connection that ended, however short it was.
func TestFastPathShortConnections(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	server := n.echo(t, "10.2.0.1:443")
	w, _ := n.start(t)
	mustMap(t, w, peer("alice", client4), server, 443)
	for i := range 200 {
		c := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
		if err := c.talk(i * 100); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			_ = c.Conn.(*net.TCPConn).SetLinger(0)
		}
		c.Close()
	}
	eventually(t, "none is established", func() bool {
		for _, f := range n.tracked(t) {
			if f.Established {
				return false
			}
		}
		return true
	})
	for line := range strings.Lines(n.waypoint.Output(t, "sh", "-c", "conntrack -L -o extended 2>/dev/null")) {
		if fields := strings.Fields(line); len(fields) > 4 && (len(fields[4]) > 3 || fields[4] > "120" && len(fields[4]) == 3) {
			t.Errorf("lives on: %s", line)
		}
	}
}

// After one end has finished, the other may continue, for longer than conntrack keeps such connections without a
// packet.
func TestFastPathHalfClosed(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	listener := n.server.Listen(t, "10.2.0.1:443")
	w, _ := n.start(t)
	mustMap(t, w, peer("alice", client4), netip.MustParseAddrPort("10.2.0.1:443"), 443)
	client, err := n.client.Dial(t.Context(), netip.AddrPortFrom(waypoint4, 443))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	waitFast(t, w, 1, ends{client, server})
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(server); err != nil {
		t.Fatal(err)
	}
	const size = 1 << 20
	go func() {
		_, _ = server.Write(make([]byte, size))
		_ = server.Close()
	}()
	got, err := io.ReadAll(client)
	if err != nil || len(got) != size {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if list := n.tracked(t); len(list) != 1 || list[0].BytesReply < size {
		t.Errorf("netfilter has not seen what followed the first end: %+v", list)
	}
}

// conntrack treats a reset as forged if its number is before what it saw acknowledged. After two gigabytes that it
// did not see, that may be any number.
func TestFastPathResetAfterTwoGigabytes(t *testing.T) {
	if testing.Short() {
		t.Skip("sends more than two gigabytes")
	}
	n := newNetwork(t)
	listener := n.server.Listen(t, "10.2.0.1:443")
	w, _ := n.start(t)
	mustMap(t, w, peer("alice", client4), netip.MustParseAddrPort("10.2.0.1:443"), 443)
	client, err := n.client.Dial(t.Context(), netip.AddrPortFrom(waypoint4, 443))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	waitFast(t, w, 1, ends{client, server})
	const size = 1<<31 + 1<<28
	go func() {
		piece := make([]byte, 1<<20)
		for sent := 0; sent < size; sent += len(piece) {
			if _, err := server.Write(piece); err != nil {
				return
			}
		}
	}()
	piece := make([]byte, 1<<20) // io.Discard reads only 8 KB at a time
	for got := 0; got < size; {
		n, err := client.Read(piece)
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	if err := errors.Join(server.(*net.TCPConn).SetLinger(0), server.Close()); err != nil {
		t.Fatal(err)
	}
	_ = client.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the client sees %v", err)
	}
}

// Where each packet counts, none passes by.
func TestNoFastPath(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"a limit of bandwidth": func(c *Config) { c.BandwidthPerMember = 1 << 30 },
		"switched off":         func(c *Config) { c.FastPath = false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			change(&n.config)
			server := n.echo(t, "10.2.0.1:443")
			w, _ := n.start(t)
			mustMap(t, w, peer("alice", client4), server, 443)
			c := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
			total := 0
			for start := time.Now(); time.Since(start) < 4*flows.WatchEvery; total += 1000 {
				if err := c.talk(1000); err != nil {
					t.Fatal(err)
				}
			}
			if s, err := w.Snapshot(); err != nil || s.Fast != nil {
				t.Errorf("snapshot %+v, %v", s, err)
			}
			if list := n.tracked(t); len(list) != 1 || list[0].BytesOrigin < uint64(total) {
				t.Errorf("netfilter has not seen %d bytes: %+v", total, list)
			}
		})
	}
}
