package strangers

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// far is a listener's view of connections from addresses that a test chooses.
type far struct{ arriving chan net.Conn }

func (f *far) Accept() (net.Conn, error) { return <-f.arriving, nil }
func (*far) Close() error                { return nil }
func (*far) Addr() net.Addr              { return &net.TCPAddr{} }

type farConn struct {
	net.Conn
	from net.Addr
}

func (c farConn) RemoteAddr() net.Addr { return c.from }

// world is a listener and who connects to it.
type world struct {
	t        *testing.T
	far      *far
	listener *Listener
}

func newWorld(t *testing.T, limits Limits) *world {
	f := &far{arriving: make(chan net.Conn, 1)}
	return &world{t, f, NewListener(f, limits, NewSeen())}
}

// visit connects from an address, and returns both ends.
func (w *world) visit(from string) (theirs net.Conn, ours *Conn) {
	w.t.Helper()
	here, there := net.Pipe()
	w.far.arriving <- farConn{here, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 1))}
	conn, err := w.listener.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	return there, conn.(*Conn)
}

// open says whether the listener has left a visitor's connection open.
func open(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return !errors.Is(err, io.EOF)
}

// A stranger from one address gives way to the next from there, and nobody else does.
func TestOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Limits{Total: 100, PerSource: 3, Patience: time.Hour})
		bystander, _ := w.visit("198.51.100.7")
		var visits []net.Conn
		for range 5 {
			theirs, _ := w.visit("2001:db8::" + fmt.Sprint(len(visits)+1)) // all of one /64
			visits = append(visits, theirs)
		}
		for i, v := range visits {
			if open(v) != (i >= 2) {
				t.Errorf("visit %d: open is %v", i, open(v))
			}
		}
		if !open(bystander) || w.listener.Strangers() != 4 {
			t.Errorf("the bystander's is open: %v; %d strangers", open(bystander), w.listener.Strangers())
		}
	})
}

// When all places are taken, the oldest of the address with the most gives way.
func TestManyAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Limits{Total: 10, PerSource: 5, Patience: time.Hour})
		first, _ := w.visit("192.0.2.1")
		var slow []net.Conn
		for i := range 9 {
			theirs, _ := w.visit(fmt.Sprintf("198.51.100.%d", 1+i/3))
			slow = append(slow, theirs)
		}
		honest, _ := w.visit("203.0.113.1")
		if !open(honest) || !open(first) || open(slow[0]) {
			t.Errorf("open: the honest %v, the first %v, the oldest of many %v", open(honest), open(first), open(slow[0]))
		}
		if w.listener.Strangers() != 10 {
			t.Errorf("%d strangers", w.listener.Strangers())
		}
	})
}

// With one connection from each of any number of addresses the oldest gives way; a member's address is not
// concerned.
func TestOneOfEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Limits{Total: 10, PerSource: 5, Patience: time.Hour})
		_, ours := w.visit("192.0.2.1")
		ours.Admit("alice")
		member, _ := w.visit("192.0.2.1")
		var slow []net.Conn
		for i := range 30 {
			theirs, _ := w.visit(fmt.Sprintf("198.51.100.%d", i))
			slow = append(slow, theirs)
		}
		for i, v := range slow {
			if open(v) != (i >= 20) {
				t.Errorf("stranger %d: open is %v", i, open(v))
			}
		}
		if !open(member) {
			t.Error("strangers have pushed out who came from a member's address")
		}
		w.listener.places.seen.Keep(func(string) bool { return false })
		late, _ := w.visit("192.0.2.1")
		for i := range 10 {
			w.visit(fmt.Sprintf("198.51.100.%d", i))
		}
		if open(late) {
			t.Error("an address still counts where only former members were seen")
		}
	})
}

// Who shows nothing is gone after a while; who is admitted stays.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Limits{Total: 10, PerSource: 5, Patience: 5 * time.Second})
		silent, _ := w.visit("192.0.2.1")
		member, ours := w.visit("192.0.2.2")
		ours.Admit("alice")
		time.Sleep(4 * time.Second)
		if !open(silent) {
			t.Error("closed too soon")
		}
		time.Sleep(2 * time.Second)
		if open(silent) || !open(member) || w.listener.Strangers() != 0 {
			t.Errorf("open: the silent one %v, the member %v; %d strangers", open(silent), open(member), w.listener.Strangers())
		}
	})
}

// Of a member's connections the oldest gives way, and nobody else's. Those that were closed do not count.
func TestMembersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Limits{Total: 10, PerSource: 5, Patience: time.Hour, PerMember: 3})
		bystander, bob := w.visit("192.0.2.1") // behind the same NAT
		bob.Admit("bob")
		admit := func(from string) (net.Conn, *Conn) {
			theirs, ours := w.visit(from)
			ours.Admit("alice")
			ours.Admit("alice") // counts once
			return theirs, ours
		}
		_, gone := admit("192.0.2.1")
		gone.Close()
		var hers []net.Conn
		for i := range 5 {
			theirs, _ := admit(fmt.Sprintf("192.0.2.%d", 1+i))
			hers = append(hers, theirs)
		}
		for i, c := range hers {
			if open(c) != (i >= 2) {
				t.Errorf("connection %d of one member: open is %v", i, open(c))
			}
		}
		if !open(bystander) {
			t.Error("another member's connection is closed")
		}
		if w.listener.Strangers() != 0 || len(w.listener.admitted["alice"]) != 3 {
			t.Errorf("%d strangers, %d of the member", w.listener.Strangers(), len(w.listener.admitted["alice"]))
		}
	})
}

// One member's many addresses push out none of another's.
func TestSeenIsPerMember(t *testing.T) {
	s := NewSeen()
	at := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
	}
	s.add("alice", at(1))
	s.add("mallory", at(1))
	for i := range 1000 {
		s.add("mallory", at(2+i))
	}
	if !s.has(at(1)) || s.has(at(2)) || !s.has(at(1001)) || len(s.sources) != 1+perMember {
		t.Errorf("alice's %v, mallory's first %v and last %v, %d in all", s.has(at(1)), s.has(at(2)), s.has(at(1001)), len(s.sources))
	}
}

// Whatever comes and goes, the bounds hold, the newest stranger has its place, and the count is right.
func TestCrowdInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limits := Limits{Total: rapid.IntRange(1, 8).Draw(rt, "total"), PerSource: rapid.IntRange(1, 4).Draw(rt, "per source")}
		c := newCrowd(limits)
		there := map[*Place]bool{}
		var all []*Place
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			if len(all) > 0 && rapid.IntRange(0, 2).Draw(rt, "leaves") == 0 {
				conn := rapid.SampledFrom(all).Draw(rt, "who")
				if c.leave(conn) != there[conn] {
					rt.Fatalf("leave said that it was there: %v", !there[conn])
				}
				delete(there, conn)
			} else {
				conn := &Place{source: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(rapid.IntRange(1, 6).Draw(rt, "from"))}), 32)}
				all = append(all, conn)
				if victim := c.enter(conn); victim != nil {
					if !there[victim] {
						rt.Fatal("somebody who was not there gave way")
					}
					delete(there, victim)
				}
				there[conn] = true
			}
			perSource := map[netip.Prefix]int{}
			for conn := range there {
				perSource[conn.source]++
			}
			if c.total != len(there) || c.total > limits.Total || len(c.sources) != len(perSource) {
				rt.Fatalf("%d of %d places taken, by %d sources; there are %d, of %d", c.total, limits.Total, len(c.sources), len(there), len(perSource))
			}
			for prefix, n := range perSource {
				if n > limits.PerSource || c.sources[prefix].conns.Len() != n {
					rt.Fatalf("%v has %d, counted as %d", prefix, n, c.sources[prefix].conns.Len())
				}
			}
		}
	})
}

// A real listener's connections are bounded too, and closing them frees their places.
func TestOverTCP(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := NewListener(plain, Limits{Total: 4, PerSource: 4, Patience: time.Minute}, NewSeen())
	defer l.Close()
	var ours, theirs []net.Conn
	for range 6 {
		out, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { out.Close() })
		in, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs = append(ours, in), append(theirs, out)
	}
	for i, c := range theirs {
		c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		if stays := errors.Is(err, os.ErrDeadlineExceeded); stays != (i >= 2) {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	for _, c := range ours {
		c.Close()
	}
	if n := l.Strangers(); n != 0 {
		t.Errorf("%d strangers after all were closed", n)
	}
}
