package option

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/tcpopt"
)

// firewall drops packets that arrive at a host, and counts SYNs.
func firewall(t *testing.T, ns *netnstest.NS, drops string) {
	t.Helper()
	ns.Output(t, "nft", fmt.Sprintf(`table inet firewall
delete table inet firewall
table inet firewall {
	counter announcing { }
	counter plain { }
	chain arrives {
		type filter hook prerouting priority -300
		tcp flags & (syn | ack) == syn tcp option 254 exists counter name announcing
		tcp flags & (syn | ack) == syn tcp option 254 missing counter name plain
		%s
	}
}`, drops))
}

const (
	dropAnnouncements = "tcp flags & syn == syn tcp option 254 exists drop"
	dropNothing       = ""
)

// arrived returns how many SYNs with and without an announcement have arrived.
func arrived(t *testing.T, ns *netnstest.NS) (announcing, plain int) {
	t.Helper()
	for name, count := range map[string]*int{"announcing": &announcing, "plain": &plain} {
		list := ns.Output(t, "nft", "list", "counter", "inet", "firewall", name)
		_, list, _ = strings.Cut(list, "packets ")
		if _, err := fmt.Sscan(list, count); err != nil {
			t.Fatalf("%v in %q", err, list)
		}
	}
	return announcing, plain
}

// wantArrived fails if other SYNs have arrived.
func wantArrived(t *testing.T, ns *netnstest.NS, what string, announcing, plain int) {
	t.Helper()
	if a, p := arrived(t, ns); a != announcing || p != plain {
		t.Errorf("%s: %d SYNs with an announcement and %d without have arrived, want %d and %d", what, a, p, announcing, plain)
	}
}

// resting returns the networks to which nothing is announced, and whether nothing is announced to the whole Internet.
func resting(t *testing.T, x *observed) (networks []netip.Prefix, all bool) {
	t.Helper()
	list, until, err := x.Rests()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		networks = append(networks, r.Network)
	}
	return networks, !until.IsZero()
}

// longest returns the length of the longest rest of a network, and the time until it ends.
func longest(t *testing.T, x *observed) (length, remains time.Duration) {
	t.Helper()
	list, _, err := x.Rests()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		remains = max(remains, time.Until(r.Until))
	}
	var address [16]byte
	var r rest
	for entries := x.objects.Rests.Iterate(); entries.Next(&address, &r); {
		length = max(length, time.Duration(r.Length))
	}
	return length, remains
}

// endRests makes all rests end now.
func endRests(t *testing.T, x *observed) {
	t.Helper()
	list, _, err := x.Rests()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list {
		var r rest
		key := n.Network.Addr().As16()
		if err := x.objects.Rests.Lookup(key, &r); err != nil {
			t.Fatal(err)
		}
		r.Until = 1
		if err := x.objects.Rests.Put(key, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.objects.AllUntil.Set(uint64(1)); err != nil {
		t.Fatal(err)
	}
}

// Where SYNs with an announcement are dropped, the second SYN of the first connection opens it, and the next connections
// announce nothing.
func TestDroppedSYN(t *testing.T) {
	ask := Config{Ask: []tcpopt.Request{{Option: tcpopt.Congestion, Value: 1}}}
	for _, c := range []struct {
		name, address string
		mptcp         bool
		client        Config
		network       string
	}{
		{"tcp4", serverAddress, false, ask, "192.0.2.0/24"},
		{"tcp6", "2001:db8::2", false, ask, "2001:db8::/48"},
		{"mptcp4", serverAddress, true, ask, "192.0.2.0/24"},
		{"mptcp6", "2001:db8::2", true, ask, "2001:db8::/48"},
		{"only grants", serverAddress, false, granting(), "192.0.2.0/24"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHosts(t)
			firewall(t, h.server, dropAnnouncements)
			client := open(t, h.client, c.client)
			open(t, h.server, granting())
			l := listen(t, h.server, c.address, c.mptcp)
			dial := func() {
				t.Helper()
				a, b := connect(t, h.client, l, c.mptcp)
				download(t, a, b, 1<<10)
			}
			dial()
			wantArrived(t, h.server, "the first connection", 1, 1)
			if networks, all := resting(t, client); len(networks) != 1 || networks[0].String() != c.network || all {
				t.Errorf("nothing is announced to %v, to all: %v", networks, all)
			}
			dial()
			wantArrived(t, h.server, "the second connection", 1, 2)
		})
	}
}

// A rest is twice as long each time, and an announcement that is answered ends it.
func TestRestsGrow(t *testing.T) {
	t.Parallel()
	h := newHosts(t)
	firewall(t, h.server, dropAnnouncements)
	client := open(t, h.client, Config{Ask: []tcpopt.Request{{Option: tcpopt.Congestion, Value: 1}}})
	granted := open(t, h.server, granting())
	l := listen(t, h.server, serverAddress, false)
	for _, want := range []time.Duration{10 * time.Minute, 20 * time.Minute, 40 * time.Minute} {
		endRests(t, client)
		connect(t, h.client, l, false)
		if length, remains := longest(t, client); length != want || remains > want || remains < want-time.Minute {
			t.Errorf("it rests for %v, of which %v remain, want %v", length, remains, want)
		}
	}
	wantArrived(t, h.server, "three rests", 3, 3)

	// A day is the longest.
	list, _, err := client.Rests()
	if err != nil || len(list) != 1 {
		t.Fatal(err, list)
	}
	key := list[0].Network.Addr().As16()
	if err := client.objects.Rests.Put(key, rest{Until: 1, Length: uint64(20 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	connect(t, h.client, l, false)
	if length, _ := longest(t, client); length != 24*time.Hour {
		t.Errorf("the longest rest has %v", length)
	}

	endRests(t, client)
	firewall(t, h.server, dropNothing)
	a, b := connect(t, h.client, l, false)
	wantArrived(t, h.server, "without the firewall", 1, 0)
	download(t, a, b, 4<<20)
	if r := granted.await(t, tcpopt.Congestion); r.Verdict != tcpopt.Granted {
		t.Errorf("%+v", r)
	}
	if length, _ := longest(t, client); length != 0 {
		t.Errorf("after an answer, %v are remembered", length)
	}
}

// If the second SYN is lost as well, the announcement was not the reason.
func TestLostTwice(t *testing.T) {
	t.Parallel()
	h := newHosts(t)
	firewall(t, h.server, "tcp flags & (syn | ack) == syn numgen inc mod 1000 < 2 drop")
	client := open(t, h.client, Config{Ask: []tcpopt.Request{{Option: tcpopt.Congestion, Value: 1}}})
	connect(t, h.client, listen(t, h.server, serverAddress, false), false)
	wantArrived(t, h.server, "two lost SYNs", 1, 2)
	if networks, _ := resting(t, client); networks != nil {
		t.Errorf("nothing is announced to %v", networks)
	}
}

// After four networks in a row, nothing is announced to others, except to those that are no part of the Internet.
func TestFourNetworksInARow(t *testing.T) {
	t.Parallel()
	h := hosts{client: netnstest.New(t), server: netnstest.New(t)}
	const good, private = "198.18.9", "10.0.0"
	networks := []string{"192.0.2", "198.51.100", "203.0.113", "198.18.1", "198.18.2", "198.18.3", "198.18.4", good, private}
	var clients, servers []string
	for _, n := range networks {
		clients, servers = append(clients, n+".1/24"), append(servers, n+".2/24")
	}
	netnstest.Veth(t, netnstest.End{NS: h.client, Name: "v", Addresses: clients}, netnstest.End{NS: h.server, Name: "v", Addresses: servers})
	firewall(t, h.server, "ip daddr { "+good+".2, "+private+".2 } accept; "+dropAnnouncements)
	client := open(t, h.client, Config{Ask: []tcpopt.Request{{Option: tcpopt.Congestion, Value: 1}}})
	l := listen(t, h.server, "0.0.0.0", false)
	dial := func(network string) {
		t.Helper()
		var c net.Conn
		h.client.Must(t, func() (err error) {
			c, err = net.Dial("tcp", fmt.Sprintf("%s.2:%d", network, l.Addr().(*net.TCPAddr).Port))
			return err
		})
		c.Close()
	}
	want := func(what string, announcing int, all bool) {
		t.Helper()
		if got, _ := arrived(t, h.server); got != announcing {
			t.Errorf("%s: %d SYNs with an announcement, want %d", what, got, announcing)
		}
		if _, got := resting(t, client); got != all {
			t.Errorf("%s: nothing is announced to all: %v", what, got)
		}
	}
	for _, n := range networks[:3] {
		dial(n)
	}
	want("three networks", 3, false)
	dial(good)
	dial(networks[3])
	want("one that answers, and another", 5, false)
	dial(networks[4])
	dial(private)
	dial(networks[5])
	want("three in a row, and a private one that answers", 8, false)
	dial(networks[6])
	want("four in a row", 9, true)
	dial(good)
	want("one that would answer", 9, true)
	dial(private)
	want("a private one", 10, true)

	// After the rest, one network is enough for the next.
	endRests(t, client)
	dial(networks[0])
	want("after the rest", 11, true)
	dial(good)
	want("in the next rest", 11, true)
	endRests(t, client)
	dial(good)
	dial(networks[1])
	want("after an answer", 13, false)
}

// A SYN+ACK that is sent again has no answer, and the server asks nothing then.
func TestRepeatedSYNACK(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	config := granting()
	config.Ask = []tcpopt.Request{{Option: tcpopt.Congestion, Value: 1}}
	server := open(t, ns, config)
	p, l := newRawPeer(t, ns)
	answer := []byte{254, 6, 0xdc, 0x10}
	p.send(t, flagSYN, announcement(10, 1, allOptions, tcpopt.Congestion))
	if options := p.synACK(t); !bytes.Contains(options, answer) {
		t.Errorf("the SYN+ACK has % x", options)
	}
	if options := p.synACK(t); bytes.Contains(options, answer) {
		t.Errorf("the second SYN+ACK has % x", options)
	}
	p.seq-- // there was one SYN
	p.ackWith(t, nil)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// The server acknowledges what it gets.
	p.sendData(t, flagACK, nil, []byte{1})
	p.seq++
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	p.ackWith(t, goodTime)
	select {
	case r := <-server.reports:
		if r.Request.Option != tcpopt.UserTimeout || r.Verdict != tcpopt.Granted {
			t.Errorf("first reported %+v", r)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no report")
	}
	server.none(t)
}
