package openvpn

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

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
	rules := n.bob.Output(t, "nft", "list", "chain", "inet", serverIf, "data")
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
	packet := binary.BigEndian.AppendUint32(nil, dataV2<<24) // and client 0
	packet = binary.BigEndian.AppendUint32(packet, number)
	// OpenVPN's own ping (ping.c), so that nothing else need be right.
	ping, err := hex.DecodeString("2a187bf3641eb4cb07ed2d0a981fc748")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(append(packet, ping...)); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	_, err = c.Read(make([]byte, 2000))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return err == nil
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
	var clients []netip.AddrPort
	var g *nft.Kept
	n.bob.Must(t, func() (err error) {
		g, err = openGuard("guarded", 1194, func() []netip.AddrPort { return clients })
		return err
	})
	defer g.Close()
	a, b, c := netip.MustParseAddrPort("192.0.2.2:5000"), netip.MustParseAddrPort("[2001:db8::2]:5001"), netip.MustParseAddrPort("192.0.2.9:5002")
	check := func(when string, want ...string) {
		t.Helper()
		rules := n.bob.Output(t, "nft", "list", "table", "inet", "guarded")
		for _, text := range []string{"192.0.2.2 . 5000", "2001:db8::2 . 5001", "192.0.2.9 . 5002"} {
			if has, should := strings.Contains(rules, text), strings.Contains(strings.Join(want, "\n"), text); has != should {
				t.Errorf("%s: %q in the guard: %t, should be %t\n%s", when, text, has, should, rules)
			}
		}
	}
	check("empty")
	clients = []netip.AddrPort{a, b, c}
	if err := g.Install(); err != nil {
		t.Fatal(err)
	}
	check("admitted", "192.0.2.2 . 5000", "2001:db8::2 . 5001", "192.0.2.9 . 5002")
	clients = []netip.AddrPort{a, b, a} // two sessions from one place
	if err := g.Install(); err != nil {
		t.Fatal(err)
	}
	check("kept two", "192.0.2.2 . 5000", "2001:db8::2 . 5001")
	n.bob.Output(t, "nft", "flush", "ruleset")
	if restored, err := g.Check(); err != nil || !restored {
		t.Errorf("check after a flush: %t, %v", restored, err)
	}
	check("restored", "192.0.2.2 . 5000", "2001:db8::2 . 5001")
	n.bob.Must(t, func() error { return CleanUp("guarded") })
	if tables := n.bob.Output(t, "nft", "list", "tables"); tables != "" {
		t.Errorf("after CleanUp: %s", tables)
	}
	n.bob.Must(t, func() error { return CleanUp("guarded") })
}
