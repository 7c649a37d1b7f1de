package openvpn

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// A stranger sends a data packet with alice's small number. Without the guard openvpn takes it for
// hers and answers to the stranger; with it nothing happens, and alice's tunnel goes on.
func TestStranger(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.serve()
	echo(t, n.bob, "10.77.0.1:7")
	admit(t, s, "alice", aliceIn)
	n.connect(n.alice, n.clientConfig("alice", bobAtAlice), aliceIn)
	works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")

	var mallory net.Conn
	n.mallory.Must(t, func() (err error) {
		var d net.Dialer
		mallory, err = d.DialContext(t.Context(), "udp", "203.0.113.1:1194")
		return err
	})
	defer mallory.Close()
	if forge(t, mallory, 1_000_000, 2*pingEvery*time.Second) {
		t.Fatal("the server took a stranger for alice")
	}
	works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")

	// Somebody's firewall is reloaded. What the guard is for shows now; and it comes back.
	n.bob.Output(t, "nft", "flush", "ruleset")
	if !forge(t, mallory, 2_000_000, 2*pingEvery*time.Second) {
		t.Error("without the guard the stranger was not taken for alice: what is the guard for?")
	}
	waitFor(t, "the guard to come back", func() bool {
		return strings.Contains(n.bob.Output(t, "nft", "list", "tables"), "inet "+serverIf)
	})
	before := dropped(t, n)
	forge(t, mallory, 3_000_000, 100*time.Millisecond)
	if after := dropped(t, n); after <= before {
		t.Errorf("the guard that came back let a forged packet in: it has dropped %d, then %d", before, after)
	}
	// The forged number makes alice's own look old. She is not heard, hears nothing, and connects anew.
	waitFor(t, "alice to be heard again", func() bool {
		c, err := dialFor(n.alice, time.Second, aliceIn[0].Addr(), "10.77.0.1:7")
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
}

func dropped(t *testing.T, n *network) int {
	t.Helper()
	rules := n.bob.Output(t, "nft", "list", "chain", "inet", serverIf, "refused")
	_, counter, _ := strings.Cut(rules, "counter packets ")
	number, _, ok := strings.Cut(counter, " ")
	count := 0
	for _, d := range number {
		count = count*10 + int(d-'0')
	}
	if !ok {
		t.Fatalf("no counter in %s", rules)
	}
	return count
}

// forge sends a data packet as client 0 and tells whether the server answers.
func forge(t *testing.T, c net.Conn, number uint32, patience time.Duration) bool {
	t.Helper()
	if _, err := c.Write(data(0, number)); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Read(make([]byte, 2000))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return err == nil
}

// data returns a data packet of a client.
func data(peer, number uint32) []byte {
	packet := binary.BigEndian.AppendUint32(nil, dataV2<<24|peer)
	packet = binary.BigEndian.AppendUint32(packet, number)
	// OpenVPN's own ping (ping.c), so that nothing else need be right.
	return append(packet, "\x2a\x18\x7b\xf3\x64\x1e\xb4\xcb\x07\xed\x2d\x0a\x98\x1f\xc7\x48"...)
}

// Carol, who is connected, sends data packets with alice's peer number from her own address and port.
// OpenVPN would not take her for alice, but would note their packet numbers as alice's: it would take
// all that alice sends for old. The guard drops them, and packets that have no peer number.
func TestMemberForgesAnother(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.serve()
	echo(t, n.bob, "10.77.0.1:7")
	admit(t, s, "alice", aliceIn)
	admit(t, s, "carol", carolIn)
	n.connect(n.alice, n.clientConfig("alice", bobAtAlice), aliceIn)
	n.connect(n.carol, n.clientConfig("carol", bobAtCarol), carolIn)
	clients := s.clients()
	alice, carol := clients["alice"], clients["carol"]
	if alice.peer == noPeer || carol.peer == noPeer || alice.peer == carol.peer {
		t.Fatalf("peer numbers of alice and carol: %d, %d", alice.peer, carol.peer)
	}
	hers, err := dial(n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
	if err != nil {
		t.Fatal(err)
	}
	defer hers.Close()
	heard := func(when string) {
		t.Helper()
		began := time.Now()
		if err := bounce(hers, 10_000); err != nil {
			t.Fatalf("%s: alice: %v", when, err)
		}
		if took := time.Since(began); took > pingEvery*time.Second {
			t.Errorf("%s: alice was not heard for %v", when, took)
		}
	}
	heard("before")

	v1 := append([]byte{dataV1}, data(alice.peer, 2_000_000)[1:]...)
	own := append([]byte{dataV1}, data(carol.peer, 2_000_000)[1:]...) // its bytes look like her peer number
	for name, packet := range map[string][]byte{"alice's number": data(alice.peer, 1_000_000), "version 1": v1, "version 1, own number": own} {
		before := dropped(t, n)
		sendFrom(t, n.carol, carol.remote, bobAtCarol, packet)
		heard("after " + name)
		if after := dropped(t, n); after != before+1 {
			t.Errorf("%s: the guard dropped %d packets, want 1", name, after-before)
		}
	}
	works(t, n.carol, carolIn[0].Addr(), "10.77.0.1:7")
	// The packets that were dropped came from her place: with her own number the guard lets one in.
	before := dropped(t, n)
	sendFrom(t, n.carol, carol.remote, bobAtCarol, data(carol.peer, 0))
	heard("after carol's number")
	if after := dropped(t, n); after != before {
		t.Errorf("the guard dropped %d packets with the sender's own number", after-before)
	}
}

// sendFrom sends a UDP packet over IPv4 from a port that another program uses.
func sendFrom(t *testing.T, ns *netnstest.NS, from, to netip.AddrPort, payload []byte) {
	t.Helper()
	packet := binary.BigEndian.AppendUint16(nil, from.Port())
	packet = binary.BigEndian.AppendUint16(packet, to.Port())
	packet = binary.BigEndian.AppendUint16(packet, uint16(8+len(payload)))
	packet = append(packet, 0, 0) // no checksum
	packet = append(packet, payload...)
	ns.Must(t, func() error {
		c, err := net.DialIP("ip4:udp", &net.IPAddr{IP: from.Addr().AsSlice()}, &net.IPAddr{IP: to.Addr().AsSlice()})
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(packet)
		return err
	})
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for late := time.Now().Add(30 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("waited 30 s in vain for %s", what)
		}
	}
}

// The guard keeps just the clients it is told to, through a reload too.
func TestGuardKeeps(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	var clients []source
	var g *nft.Kept
	n.bob.Must(t, func() (err error) {
		g, err = openGuard("guarded", 1194, func() []source { return clients })
		return err
	})
	defer g.Close()
	a := source{netip.MustParseAddrPort("192.0.2.2:5000"), 0}
	b := source{netip.MustParseAddrPort("[2001:db8::2]:5001"), 0x10203}
	c := source{netip.MustParseAddrPort("192.0.2.9:5002"), noPeer - 1}
	const isA, isB, isC = "192.0.2.2 . 5000 . 0x0", "2001:db8::2 . 5001 . 0x10203", "192.0.2.9 . 5002 . 0xfffffe"
	check := func(when string, want ...string) {
		t.Helper()
		rules := n.bob.Output(t, "nft", "list", "table", "inet", "guarded")
		for _, text := range []string{isA, isB, isC} {
			if has, should := strings.Contains(rules, text), strings.Contains(strings.Join(want, "\n"), text); has != should {
				t.Errorf("%s: %q in the guard: %t, should be %t\n%s", when, text, has, should, rules)
			}
		}
	}
	check("empty")
	clients = []source{a, b, c}
	if err := g.Install(); err != nil {
		t.Fatal(err)
	}
	check("admitted", isA, isB, isC)
	clients = []source{a, b, a} // two sessions from one place
	if err := g.Install(); err != nil {
		t.Fatal(err)
	}
	check("kept two", isA, isB)
	n.bob.Output(t, "nft", "flush", "ruleset")
	if restored, err := g.Check(); err != nil || !restored {
		t.Errorf("check after a flush: %t, %v", restored, err)
	}
	check("restored", isA, isB)

	// What nft lists it can load again.
	saved := filepath.Join(t.TempDir(), "saved.nft")
	before := n.bob.Output(t, "nft", "list", "ruleset")
	if err := os.WriteFile(saved, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	n.bob.Output(t, "nft", "flush", "ruleset")
	n.bob.Output(t, "nft", "-f", saved)
	if after := n.bob.Output(t, "nft", "list", "ruleset"); after != before {
		t.Errorf("saved:\n%s\nloaded:\n%s", before, after)
	}
	n.bob.Must(t, func() error { return CleanUp("guarded") })
	if tables := n.bob.Output(t, "nft", "list", "tables"); tables != "" {
		t.Errorf("after CleanUp: %s", tables)
	}
	n.bob.Must(t, func() error { return CleanUp("guarded") })
}
