package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/lab/testbed"
)

// optionServer returns the option that names a SYN's server (RFC 6994).
func optionServer(server netip.Addr) []byte {
	a := server.As4()
	return append([]byte{254, 8, 0xdc, 0x01}, a[:]...)
}

// asksForDetour: a SYN that names a server.
func asksForDetour(p segment) bool {
	return p.flags == packet.SYN && bytes.Contains(p.options, []byte{254, 8, 0xdc, 0x01})
}

// timestamps finds the option in a SYN: TSval and TSecr are at [2:6] and [6:10] of it.
func timestamps(p segment) []byte {
	i := bytes.Index(p.options, []byte{8, 10})
	return p.options[i : i+10]
}

// watchServer counts the SYNs that reach the server through bob. reached returns the count.
func (w *world) watchServer() (reached func() string) {
	w.Helper()
	w.run(server, "nft", fmt.Sprintf("table inet watch {\nchain input {\ntype filter hook input priority 0\n"+
		"ip saddr %v tcp flags & (syn|ack) == syn counter\n}\n}", w.addr4(bob)))
	return func() string {
		w.Helper()
		_, count, _ := strings.Cut(w.run(server, "nft", "list", "table", "inet", "watch"), "counter packets ")
		count, _, _ = strings.Cut(count, " ")
		return count
	}
}

// difference returns what bob did with SYNs since before.
func difference(before, now api.InBand) (accepted, bad, replayed, malformed, unknown uint64) {
	return now.Accepted - before.Accepted, now.BadAuthenticator - before.BadAuthenticator, now.Replayed - before.Replayed,
		now.Malformed - before.Malformed, now.UnknownAddress - before.UnknownAddress
}

// A stranger on the path intercepts a member's SYN and forges others from it, with the member's address. None
// of them gets a detour. The SYN itself passes once, which shows that the others could have arrived, but not
// twice.
func TestForgedSYNs(t *testing.T) {
	w := withKinds(newWorld(t), "in-band")
	w.startBoth()
	w.kindIs("in-band", "ready")
	reached := w.watchServer()
	if err := w.host(router).SetMiddlebox(testbed.DropOptions); err != nil {
		t.Fatal(err)
	}
	seen := w.listener(router)
	x := w.curl(w.url())
	original, ok := seen(asksForDetour)
	if !ok {
		t.Fatal("alice sends no SYN that names a server")
	}
	w.kindIs("in-band", "resting", "does not get through")
	if err := w.host(router).SetMiddlebox(testbed.NoMiddlebox); err != nil {
		t.Fatal(err)
	}
	arrived := reached()

	send, refused := w.sender(mallory), w.listener(alice)
	isReset := func(to netip.AddrPort) func(segment) bool {
		return func(p segment) bool { return p.to == to && p.from == original.to && p.flags&packet.RST != 0 }
	}
	before := w.inBand()
	forge := func(change func(p *segment)) {
		t.Helper()
		p := original
		p.options = bytes.Clone(original.options)
		change(&p)
		send(p)
		if p.from.Addr() == original.from.Addr() {
			if _, ok := refused(isReset(p.from)); !ok {
				t.Errorf("a forged SYN from %v is not reset", p.from)
			}
		}
	}
	other := func(p *segment) []byte { i := bytes.Index(p.options, []byte{254, 8}); return p.options[i : i+8] }
	forge(func(p *segment) { p.seq++ })
	forge(func(p *segment) { p.from = netip.AddrPortFrom(p.from.Addr(), p.from.Port()^1) })
	forge(func(p *segment) { timestamps(*p)[5]++ })                                   // TSval
	forge(func(p *segment) { timestamps(*p)[9]++ })                                   // the authenticator
	forge(func(p *segment) { binary.BigEndian.PutUint32(timestamps(*p)[6:], 0) })     // none
	forge(func(p *segment) { b := w.addr4(mallory).As4(); copy(other(p)[4:], b[:]) }) // another server
	forge(func(p *segment) { b := w.addr4(bob).As4(); copy(other(p)[4:], b[:]) })     // the waypoint
	forge(func(p *segment) { copy(other(p)[4:], []byte{127, 0, 0, 1}) })              // its loopback
	forge(func(p *segment) { p.to = netip.AddrPortFrom(p.to.Addr(), 81); original.to = p.to })
	original.to = netip.AddrPortFrom(original.to.Addr(), 80)
	now := w.inBand()
	if accepted, bad, _, _, _ := difference(before, now); accepted != 0 || bad != 9 {
		t.Errorf("of 9 SYNs that are not authentic %d were accepted, %d not", accepted, bad)
	}
	before = now
	forge(func(p *segment) { other(p)[3]++ })                    // another experiment
	forge(func(p *segment) { o := other(p); o[1], o[7] = 7, 1 }) // truncated
	forge(func(p *segment) { p.from = netip.AddrPortFrom(w.addr4(mallory), p.from.Port()) })
	w.eventually("bob has seen the stranger's own SYN", func() error {
		accepted, bad, _, malformed, unknown := difference(before, w.inBand())
		return holds(accepted == 0 && bad == 0 && malformed == 1 && unknown == 1, "%d accepted, %d malformed, %d of unknown addresses", accepted, malformed, unknown)
	})
	if n := reached(); n != arrived {
		t.Errorf("%s SYNs reached the server by way of bob, %s before the forged ones", n, arrived)
	}

	before = w.inBand()
	send(original)
	w.eventually("the original gets through", func() error {
		accepted, _, _, _, _ := difference(before, w.inBand())
		return holds(accepted == 1 && reached() != arrived, "%d accepted", accepted)
	})
	arrived = reached()
	// It does not pass even after its connection's entry is gone, which expires in time.
	forgotten := w.try(bob, "conntrack", "-D", "-p", "tcp", "--orig-src", w.addr4(alice).String(), "--orig-port-src", fmt.Sprint(original.from.Port()))
	if forgotten.code != 0 && !strings.Contains(forgotten.stderr, "0 flow entries") {
		t.Errorf("forget the connection: %+v", forgotten)
	}
	forge(func(*segment) {})
	if _, _, replayed, _, _ := difference(before, w.inBand()); replayed != 1 || reached() != arrived {
		t.Errorf("a replayed SYN: %+v, and %s at the server, %s before", w.inBand(), reached(), arrived)
	}
	x.goesOn()
	x.endsWell()
}

// A stranger behind the NAT that a member is behind gets no detour, neither with SYNs of
// his own nor with the member's; nor do two members there get in each other's way.
func TestBehindOneNAT(t *testing.T) {
	w := withKinds(newWorldWith(t, func(s *testbed.Spec) {
		s.Hosts[0].NAT = testbed.NAT{Inside: []string{alice, mallory}}
	}))
	w.startBoth()
	w.kindIs("in-band", "ready")
	reached := w.watchServer()
	seen := w.listener(alice)
	x := w.curl(w.url())
	original, ok := seen(asksForDetour)
	if !ok {
		t.Fatal("alice sends no SYN that names a server")
	}
	w.subflows("direct up", "in-band up")
	arrived, before := reached(), w.inBand()

	send, answered := w.sender(mallory), w.listener(mallory)
	for _, forge := range []func(p *segment){
		func(*segment) {},                           // a replay
		func(p *segment) { p.seq++ },                // and one that is not
		func(p *segment) { timestamps(*p)[5] += 9 }, // as a retransmission has it
		func(p *segment) { p.options = optionServer(w.addr4(server)) },
	} {
		p := original
		p.options = bytes.Clone(original.options)
		p.from = netip.AddrPortFrom(w.addr4(mallory), p.from.Port()^1)
		forge(&p)
		send(p)
		if _, ok := answered(func(a segment) bool { return a.to == p.from && a.flags&packet.RST != 0 }); !ok {
			t.Errorf("a stranger's SYN is not reset: %+v", p)
		}
	}
	if accepted, bad, replayed, _, _ := difference(before, w.inBand()); accepted != 0 || bad != 3 || replayed != 1 {
		t.Errorf("of a stranger's SYNs %d were accepted, %d were not authentic, %d replayed", accepted, bad, replayed)
	}
	if n := reached(); n != arrived {
		t.Errorf("%s SYNs reached the server by way of bob, %s before the stranger's", n, arrived)
	}

	// The stranger becomes a member.
	w.dcol(server, "ca", "issue", mallory, "--dir", w.caDir("collective"))
	w.identify("collective", mallory)
	w.configure(mallory, strings.ReplaceAll(clientOfAll("", w.addr4(bob).String()), alice, mallory))
	w.start(mallory)
	w.eventually("mallory may send in-band SYNs", func() error {
		k := kindOf(w.mustStatus(mallory).Client.Waypoints[0], "in-band")
		return holds(k.State == "ready", "in-band is %s: %s", k.State, k.Why)
	})
	other := w.transfer(mallory, program, "run", "--", "curl", "--silent", "--no-buffer", w.url())
	w.eventually("mallory's connection has an in-band detour", func() error {
		all := w.mustStatus(mallory).Client.Connections
		return holds(len(all) == 1 && len(all[0].Subflows) == 2 && all[0].Subflows[1].Kind == "in-band" && all[0].Subflows[1].State == "up", "it has %+v", all)
	})
	w.eventually("bob distinguishes the two", func() error {
		flows := map[string]int{}
		for _, m := range w.mustStatus(bob).Serving.Members {
			flows[m.Member] = m.Flows
		}
		return holds(flows[alice] == 1 && flows[mallory] == 1, "%v", flows)
	})
	// What alice's end takes from her does not touch mallory's.
	w.restart(alice)
	w.kindIs("in-band", "ready")
	w.cut()
	x.goesOn()
	w.mend()
	other.goesOn()
	x.endsWell()
	other.endsWell()
}

// Without the authenticator a source address is enough, and each SYN that is not as it
// should be gets the answer of an ordinary one.
func TestWithoutAuthenticator(t *testing.T) {
	w := withKinds(newWorld(t))
	w.configure(bob, waypointConfig(labAllowed+"in_band_authenticator = false\n"))
	w.startBoth()
	w.kindIs("in-band", "ready")
	x := w.curl(w.url())
	w.subflows("direct up", "in-band up")
	if s := w.inBand(); s.Authenticated || s.Addresses != 1 {
		t.Errorf("bob says of in-band SYNs: %+v", s)
	}
	w.cut()
	x.goesOn()
	w.mend()

	reached := w.watchServer()
	good := optionServer(w.addr4(server))
	with := func(change func(b []byte)) []byte { b := bytes.Clone(good); change(b); return b }
	to := func(a ...byte) []byte { return with(func(b []byte) { copy(b[4:], a) }) }
	own := w.addr4(bob).As4()
	send, answered := w.sender(alice), w.listener(alice)
	from := netip.AddrPortFrom(w.addr4(alice), 20000)
	sends := func(what string, port uint16, options []byte, wanted packet.Flags) {
		t.Helper()
		from = netip.AddrPortFrom(from.Addr(), from.Port()+1)
		p := segment{from: from, to: netip.AddrPortFrom(w.addr4(bob), port), seq: 7, flags: packet.SYN, options: options}
		send(p)
		answer, ok := answered(func(a segment) bool { return a.to == from && a.from == p.to })
		if !ok || answer.flags != wanted {
			t.Errorf("a SYN with %s: flags %#x, want %#x", what, answer.flags, wanted)
		}
	}
	const refused = packet.RST | packet.ACK
	for what, options := range map[string][]byte{
		"the waypoint's address":   to(own[:]...),
		"a loopback address":       to(127, 0, 0, 1),
		"no address":               to(0, 0, 0, 0),
		"a multicast address":      to(224, 0, 0, 1),
		"a private address":        to(192, 168, 1, 1),
		"a link-local address":     to(169, 254, 169, 254),
		"another experiment":       with(func(b []byte) { b[3]++ }),
		"another kind":             with(func(b []byte) { b[0] = 253 }),
		"a long option":            append(with(func(b []byte) { b[1] = 12 }), 0, 0, 0, 0),
		"a truncated option":       with(func(b []byte) { b[1] = 4 })[:4],
		"an option beyond the end": with(func(b []byte) { b[1] = 8 })[:4],
		"no option":                {1, 1, 1, 1},
	} {
		sends(what, 83, options, refused)
	}
	if n := reached(); n != "0" {
		t.Errorf("%s SYNs reached the server by way of bob", n)
	}
	sends("a denied port", 25, good, refused)
	sends("all that it takes", 83, good, packet.SYN|packet.ACK)
	x.goesOn()
	x.endsWell()
}
