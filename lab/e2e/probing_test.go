package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/middlebox"
	"github.com/detour-collective/dcol/lab/testbed"
)

// The agent names the hops by itself, where it may probe: of a middlebox that removes MP_CAPABLE, of a firewall that keeps
// a waypoint's session from coming up, of one that drops in-band SYNs, and of one that removes MP_JOIN on the way to a
// mapping. The doctor remembers what was found.
func TestAgentProbes(t *testing.T) {
	w := newProbingWorld(t, "in-band", "mapped")
	box := func(m testbed.Middlebox) {
		t.Helper()
		if err := w.net.SetMiddlebox(router, m); err != nil {
			t.Fatal(err)
		}
	}
	gate, _ := w.host(router).AddrOn(alice)

	box(testbed.Middlebox(middlebox.PadMPTCP))
	w.run(router, "nft", "add table inet firewall; add chain inet firewall f { type filter hook forward priority 0; }; add rule inet firewall f meta l4proto udp drop")
	w.start(bob)
	w.start(alice)
	plain := w.curl(w.url())
	w.whyNames("mptcp, ", "MP_CAPABLE (MPTCP) removed (overwritten by padding) between hop 1", "and hop 2")
	w.whyNames("udp, ", "to "+bob+", ", fmt.Sprintf("UDP to port 45672 is dropped behind hop 1 (%v)", gate))

	box(testbed.DropOptions)
	w.run(router, "nft", "delete table inet firewall")
	w.waypointUp()
	plain.goesOn()
	plain.endsWell()
	w.kindIs("in-band", "ready")
	multipath := w.curl(w.url())
	w.kindIs("in-band", "resting")
	w.whyNames("in-band, ", "to "+bob+", ", fmt.Sprintf("dcol's in-band option are dropped behind hop 1 (%v)", gate))
	multipath.goesOn()
	multipath.endsWell()

	box(testbed.Middlebox(middlebox.RemoveJoins))
	mapped := w.curl(w.url())
	w.whyNames("MP_JOIN", "MP_JOIN is changed or removed", "between hop 1")
	mapped.goesOn()
	mapped.endsWell()

	// Its own probes are of now, where nothing is removed any more. Other checks may fail here.
	box(testbed.NoMiddlebox)
	out, _ := w.host(alice).Command(t.Context(), program, "doctor", "--path", w.addr4(server).String(), "--port", "80").Output()
	for _, want := range []string{"MPTCP works", "Probed paths", " ago (certain): MPTCP falls back to TCP", "UDP to port 45672 is dropped behind hop 1"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("dcol doctor without %q:\n%s", want, out)
		}
	}
	t.Logf("\n%s\n%s", w.dcol(alice, "why", w.addr4(server).String()), out)
}

// whyNames waits until `dcol why` shows a result of alice's agent with the first word, and checks the others.
func (w *world) whyNames(first string, words ...string) {
	w.Helper()
	w.within(2*patience, "dcol why shows "+first, func() error {
		said := w.dcol(alice, "why", w.addr4(server).String())
		_, probed, _ := strings.Cut(said, "Probed paths")
		if !strings.Contains(probed, first) {
			return errors.New("there is no result:\n" + said)
		}
		for _, word := range words {
			if !strings.Contains(probed, word) {
				w.Fatalf("dcol why without %q:\n%s", word, said)
			}
		}
		return nil
	})
}

// newProbingWorld has a hop more than others, with kinds of detours, and an agent of alice that probes.
func newProbingWorld(t *testing.T, kinds ...string) *world {
	t.Helper()
	const far = "far"
	w := newWorldWith(t, func(s *testbed.Spec) {
		s.Backend = testbed.BackendEmulator
		s.Hosts = append(s.Hosts, testbed.HostSpec{Name: far, Forward: true})
		for i, l := range s.Links {
			if l.A == bob || l.A == server {
				s.Links[i].B = far
			}
		}
		s.Links = append(s.Links, testbed.LinkSpec{Name: far, A: far, B: router})
	})
	withKinds(w, kinds...)
	config, err := w.read(alice, etc+"dcol.toml")
	if err != nil {
		t.Fatal(err)
	}
	w.configure(alice, string(config)+"[trace]\nprobe = true\n")
	return w
}

// A firewall lets sessions pass, but neither OpenVPN's port nor WireGuard's handshakes. The tunnels never come up. Each
// is probed at its own port: the first is found to be closed, and the second to be open, as it is for other datagrams.
func TestAgentProbesTunnels(t *testing.T) {
	w := newProbingWorld(t, "openvpn", "wireguard")
	gate, _ := w.host(router).AddrOn(alice)
	w.block()
	w.run(router, "nft", "add rule inet block forward udp dport 1194 drop")
	w.startBoth()
	w.kindIs("openvpn", "down")
	w.kindIs("wireguard", "down", "no WireGuard handshake")
	w.whyNames("UDP to port 1194", "to "+bob+", ", fmt.Sprintf("UDP to port 1194 is dropped behind hop 1 (%v)", gate))
	w.whyNames("UDP gets ", "to "+bob+", ")
	t.Log(w.dcol(alice, "why", w.addr4(server).String()))
}
