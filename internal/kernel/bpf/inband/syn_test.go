package inband

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter/tcfiltertest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
)

// pair is a client and a peer, which listens on port 443 and is silent on port
// 81. All pairs have the same addresses.
type pair struct {
	client, peer *netnstest.NS
	capture      *capture // at the peer
}

var (
	pairClient = netip.MustParseAddr("10.0.1.1")
	pairPeer   = netip.MustParseAddr("10.0.1.2")
)

func newPair(t testing.TB) *pair {
	t.Helper()
	p := &pair{client: netnstest.New(t), peer: netnstest.New(t)}
	netnstest.Veth(t,
		netnstest.End{NS: p.client, Name: "eth0", Addresses: []string{pairClient.String() + "/24"}},
		netnstest.End{NS: p.peer, Name: "eth0", Addresses: []string{pairPeer.String() + "/24"}})
	p.peer.Output(t, "nft", "add table ip quiet; add chain ip quiet in { type filter hook input priority 0; }; add rule ip quiet in tcp dport 81 drop")
	netnstest.Serve(t, p.peer.Listen(t, pairPeer.String()+":443"), netnstest.Echo)
	p.capture = newCapture(t, p.peer)
	return p
}

func pairJoin(local, remote uint16, server netip.Addr) Join {
	return Join{Local: netip.AddrPortFrom(pairClient, local), Remote: netip.AddrPortFrom(pairPeer, remote), Server: server}
}

func withAuth(j Join) Join {
	j.Auth = &Auth{Key: memberKey, Client: j.Local.Addr(), ClientPort: true}
	return j
}

// connect opens a connection from the join's local to its remote address, by a
// socket of the given family. It waits for it, unless the peer is silent there.
func (p *pair) connect(t testing.TB, family int, j Join) (fd int) {
	t.Helper()
	address := func(a netip.AddrPort) unix.Sockaddr {
		if family == unix.AF_INET6 {
			return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
		}
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	p.client.Must(t, func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Bind(fd, address(j.Local)); err != nil {
			return err
		}
		if err := unix.SetNonblock(fd, j.Remote.Port() == 81); err != nil {
			return err
		}
		if err := unix.Connect(fd, address(j.Remote)); !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		return nil
	})
	return fd
}

// echo has a word come back over the connection.
func echo(t testing.TB, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, []byte("word")); err != nil {
		t.Fatal(err)
	}
	word := make([]byte, 4)
	if _, err := unix.Read(fd, word); err != nil || !bytes.Equal(word, []byte("word")) {
		t.Fatalf("%q came back, %v", word, err)
	}
}

func checkSYN(t testing.TB, s segment, j Join) {
	t.Helper()
	if s.detour() != j.Server {
		t.Errorf("the SYN %v -> %v names %v, want %v: options %x", s.from, s.to, s.detour(), j.Server, s.options)
		return
	}
	var want uint32
	tsval, tsecr := s.timestamps(t)
	if j.Auth != nil {
		want = Authenticator(j, s.seq, tsval)
	}
	if tsecr != want {
		t.Errorf("the SYN %v -> %v has TSecr %#x, want %#x", s.from, s.to, tsecr, want)
	}
}

func checkPlain(t testing.TB, s segment) {
	t.Helper()
	if s.parsed.detours != 0 {
		t.Errorf("%v -> %v, flags %#x, has our option: %x", s.from, s.to, s.flags, s.options)
	}
	if _, tsecr := s.timestamps(t); tsecr != 0 && s.flags&packet.ACK == 0 {
		t.Errorf("the SYN %v -> %v has TSecr %#x", s.from, s.to, tsecr)
	}
}

// Exactly the SYN that was expected has the option, and nothing else on its
// connection.
func TestOptionOfOneSYN(t *testing.T) {
	p := newPair(t)
	s := openSender(t, p.client, SenderConfig{})
	if err := s.Attach([]int{indexOf(t, p.client, "eth0")}); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		name   string
		family int
		auth   bool
	}{
		{"authenticator", unix.AF_INET, true},
		{"no authenticator", unix.AF_INET, false},
		{"IPv6 socket", unix.AF_INET6, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := uint16(40000 + 10*i)
			j := pairJoin(port, 443, serverAddr)
			if c.auth {
				j = withAuth(j)
			}
			expect(t, s, j)
			checkAt := func(port uint16, check func(segment)) {
				fd := p.connect(t, c.family, pairJoin(port, 443, netip.Addr{}))
				check(p.capture.syn(t, port, 443))
				echo(t, fd)
				checkPlain(t, p.capture.next(t, "data", func(s segment) bool { return s.from.Port() == port && s.flags&packet.SYN == 0 }))
			}
			checkAt(port+1, func(s segment) { checkPlain(t, s) })
			checkAt(port, func(s segment) { checkSYN(t, s, j) })
			checkAt(port+2, func(s segment) { checkPlain(t, s) })
			var left sendJoin
			if err := s.objects.Joins.Lookup(tuple(j.Local, j.Remote), &left); !errors.Is(err, ebpf.ErrKeyNotExist) {
				t.Errorf("a join that is established is still expected: %v", err)
			}
		})
	}
}

func TestRetransmittedSYN(t *testing.T) {
	p := newPair(t)
	s := openSender(t, p.client, SenderConfig{})
	if err := s.Attach([]int{indexOf(t, p.client, "eth0")}); err != nil {
		t.Fatal(err)
	}
	j := withAuth(pairJoin(40000, 81, serverAddr))
	expect(t, s, j)
	p.connect(t, unix.AF_INET, j)
	first, second := p.capture.syn(t, 40000, 81), p.capture.syn(t, 40000, 81)
	checkSYN(t, first, j)
	checkSYN(t, second, j)
	a, _ := first.timestamps(t)
	if b, _ := second.timestamps(t); a == b || first.seq != second.seq {
		t.Errorf("TSval %d and %d, sequence number %d and %d: a receiver cannot tell a retransmission from a replay",
			a, b, first.seq, second.seq)
	}
	// Forgotten in between: the next one is an ordinary SYN.
	if s.Forget(j.Local, j.Remote) {
		t.Error("the SYN that had the option is said to have left without")
	}
	checkPlain(t, p.capture.syn(t, 40000, 81))
}

// Two hosts of one kernel, with the same addresses and ports and an agent each.
func TestTwoHosts(t *testing.T) {
	a, b, c := newPair(t), newPair(t), newPair(t)
	senderA, senderB := openSender(t, a.client, SenderConfig{}), openSender(t, b.client, SenderConfig{})
	joinA, joinB := pairJoin(40000, 443, serverAddr), pairJoin(40000, 443, netip.MustParseAddr("10.0.9.9"))
	expect(t, senderA, joinA)
	expect(t, senderB, joinB)
	for _, p := range []*pair{c, b, a} {
		p.connect(t, unix.AF_INET, joinA)
	}
	checkSYN(t, a.capture.syn(t, 40000, 443), joinA)
	checkSYN(t, b.capture.syn(t, 40000, 443), joinB)
	checkPlain(t, c.capture.syn(t, 40000, 443))
}

// After Attach without it, or Close, nothing is written over an interface.
func TestDetach(t *testing.T) {
	p := newPair(t)
	eth0 := indexOf(t, p.client, "eth0")
	var s *Sender
	p.client.Must(t, func() (err error) {
		s, err = OpenSender(SenderConfig{})
		return err
	})
	try := func(port uint16) segment {
		p.connect(t, unix.AF_INET, pairJoin(port, 443, netip.Addr{}))
		return p.capture.syn(t, port, 443)
	}
	for i, interfaces := range [][]int{{eth0}, {eth0, 1, 12345}, nil, {1}, {eth0}} {
		if err := s.Attach(interfaces); err != nil {
			t.Fatalf("attach to %v: %v", interfaces, err)
		}
		j := withAuth(pairJoin(40000+uint16(i), 443, serverAddr))
		expect(t, s, j)
		got := try(j.Local.Port())
		if _, tsecr := got.timestamps(t); (tsecr != 0) != (len(interfaces) > 0 && interfaces[0] == eth0) {
			t.Errorf("attached to %v: TSecr %#x", interfaces, tsecr)
		}
	}
	expect(t, s, pairJoin(40010, 443, serverAddr))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	checkPlain(t, try(40010))
	p.client.Must(t, func() error {
		if left := tcfiltertest.Describe(t); left != "" {
			t.Errorf("left behind: %s", left)
		}
		return nil
	})
}
