package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
)

// admitted returns the addresses that bob's kernel takes in-band SYNs from.
func (w *world) admitted() string {
	w.Helper()
	_, elements, _ := strings.Cut(w.run(bob, "nft", "list", "map", "inet", "dcol", "inband_keyed4"), "elements = {")
	return strings.TrimSpace(elements)
}

// A member that is gone is no longer admitted, at once; its connections go on.
func TestInBandEndsWithSession(t *testing.T) {
	w := withKinds(newWorld(t), "in-band")
	ofAlice, _ := w.startBoth()
	w.kindIs("in-band", "ready")
	x := w.curl(w.url())
	before := w.subflows("direct up", "in-band up")
	if now := w.admitted(); !strings.HasPrefix(now, w.addr4(alice).String()+" . 0x9") {
		t.Errorf("bob admits %q", now)
	}
	ofAlice.stop()
	w.eventually("alice is no longer admitted", func() error {
		return holds(w.admitted() == "" && w.inBand().Addresses == 0, "bob admits %q", w.admitted())
	})
	w.cut()
	x.goesOn()
	w.mend()
	w.start(alice)
	w.kindIs("in-band", "ready")
	if now := w.subflows("direct up", "in-band up"); now.Token != before.Token || detour(now).Local != detour(before).Local {
		t.Errorf("the detour is not adopted: %+v, before %+v", now, before)
	}
	w.cut()
	x.goesOn()
	w.mend()
	x.endsWell()
}

// The waypoint's agent is killed and restarted. Existing detours go on, new ones come up except for moments,
// and the client does not give up on in-band.
func TestInBandWaypointRestart(t *testing.T) {
	w := withKinds(newWorld(t), "in-band")
	_, ofBob := w.startBoth()
	w.kindIs("in-band", "ready")
	x := w.curl(w.url())
	before := w.subflows("direct up", "in-band up")
	opening := w.host(alice).Command(w.life(), "bash", "-c",
		`while "$0" run -- curl --silent --fail --output /dev/null --limit-rate 1M --range 0-200000 "$1"; do :; done`, program, w.url())
	if err := opening.Start(); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() { opened <- opening.Wait() }()
	session := w.waypoint()
	ofBob.kill()
	w.cut()
	x.goesOn()
	w.mend()
	ofBob = w.start(bob)
	w.waypointBack(session)
	w.kindIs("in-band", "ready")
	if now := w.mustStatus(alice).Client.Connections[0]; now.Token != before.Token || len(now.Subflows) != 2 || detour(now).Local != detour(before).Local {
		t.Errorf("the detour did not live on: %+v, before %+v", now, before)
	}
	accepted := w.inBand().Accepted
	w.eventually("new detours come up", func() error {
		now := w.inBand().Accepted
		return holds(now > accepted+3, "bob accepted %d SYNs, %d before", now, accepted)
	})
	session = w.waypoint()
	ofBob.stop()
	w.start(bob)
	w.waypointBack(session)
	w.kindIs("in-band", "ready")
	_ = opening.Process.Kill()
	<-opened
	x.goesOn()
	x.endsWell()
}

// The client's agent is killed. None of its programs stays attached to the cgroup, connections go on, and the
// next agent resumes. dcol down leaves no trace.
//
// The agent is configured for one cgroup. Programs outside of it get mapped detours.
func TestInBandForOneCgroup(t *testing.T) {
	group := newCgroup(t)
	w := withKinds(newWorld(t))
	w.configure(alice, clientOfAll(fmt.Sprintf("cgroup = %q\n", group), w.addr4(bob).String()))
	untouched := w.network(alice)
	w.listen(bob, 80) // or what is meant to be in-band and is not would find the mapping
	ofAlice, _ := w.startBoth()
	w.kindIs("in-band", "ready")
	if n := programsOf(t, group); n != 3 { // of bpf/inband, bpf/unsent and bpf/keepalive
		t.Errorf("%d programs at work on the cgroup of an agent", n)
	}
	inside := w.transfer(alice, "sh", "-c", `echo 0 > "$0/cgroup.procs" && exec "$@"`, group,
		program, "run", "--", "curl", "--silent", "--no-buffer", w.url())
	before := w.subflows("direct up", "in-band up")
	ofAlice.kill()
	if n := programsOf(t, group); n != 0 {
		t.Errorf("%d programs left at work on the cgroup", n)
	}
	w.cut()
	inside.goesOn()
	w.mend()
	ofAlice = w.start(alice)
	w.kindIs("in-band", "ready")
	if now := w.subflows("direct up", "in-band up"); now.Token != before.Token || detour(now).Local != detour(before).Local {
		t.Errorf("the detour is not adopted: %+v, before %+v", now, before)
	}

	// Nothing is known about the path yet, and connections from outside the cgroup do not change that.
	outside := w.curl(w.url())
	w.connections(2, "direct up", "in-band up", "mapped up")
	again := w.transfer(alice, "sh", "-c", `echo 0 > "$0/cgroup.procs" && exec "$@"`, group,
		program, "run", "--", "curl", "--silent", "--no-buffer", "http://"+port(w.addr4(server), 81)+"/file")
	w.connections(3, "direct up", "in-band up", "mapped up")
	var kinds []string
	for _, c := range w.mustStatus(alice).Client.Connections {
		kinds = append(kinds, detour(c).Kind)
	}
	if got := fmt.Sprint(kinds); got != "[in-band mapped in-band]" {
		t.Errorf("detours of programs inside, outside and inside the cgroup are %s", got)
	}
	w.cut()
	inside.goesOn()
	outside.goesOn()
	w.mend()
	again.endsWell()
	outside.endsWell()

	ofAlice.kill()
	w.dcol(alice, "down")
	if now := w.network(alice); now != untouched {
		t.Errorf("dcol down leaves\n%s\nof what was\n%s", now, untouched)
	}
	inside.goesOn()
	inside.endsWell()
}

// dcol down takes back everything of a waypoint whose agent was killed, of every kind of
// detour.
func TestDownAfterKindsOfAll(t *testing.T) {
	w := newWorld(t)
	before := map[string]string{}
	for _, host := range []string{alice, bob} {
		before[host] = w.network(host)
	}
	withKinds(w, "wireguard", "openvpn", "in-band", "mapped")
	ofAlice, ofBob := w.startBoth()
	for _, kind := range []string{"wireguard", "openvpn", "in-band"} {
		w.kindIs(kind, "ready")
	}
	x := w.curl(w.url())
	w.subflows("direct up", "wireguard up")
	for _, kill := range []bool{false, true} {
		for host, a := range map[string]*agent{alice: ofAlice, bob: ofBob} {
			if kill {
				a.kill()
			} else {
				a.stop()
			}
			w.eventually("no openvpn runs on "+host, func() error {
				left := w.openvpns(host)
				return holds(len(left) == 0, "there are %q", left)
			})
			w.dcol(host, "down")
			if now := w.network(host); now != before[host] {
				t.Errorf("dcol down leaves on %s\n%s\nof what was\n%s", host, now, before[host])
			}
			if left := strings.Fields(w.run(host, "ls", "-A", "--ignore=history.db", "/var/lib/dcol")); len(left) != 0 {
				t.Errorf("dcol down leaves %q on %s", left, host)
			}
		}
		x.goesOn()
		if !kill {
			ofAlice, ofBob = w.startBoth()
			w.kindIs("openvpn", "ready")
		}
	}
	x.endsWell()
}

// network returns all that agents change in a host's network.
func (w *world) network(host string) string {
	w.Helper()
	const look = `nft list ruleset; tc qdisc show; for i in $(ls /sys/class/net); do
		tc filter show dev $i ingress; tc filter show dev $i egress; done 2>/dev/null
		ip -o link | sed 's/ qdisc.*//'; ip rule; ip -6 rule; ip route show table all | grep -v -e ^local -e ^broadcast -e ^multicast -e ^anycast | sort`
	return w.run(host, "sh", "-c", look)
}

// newCgroup makes a cgroup (v2).
func newCgroup(t *testing.T) string {
	t.Helper()
	if cannot != "" {
		t.Skip(cannot)
	}
	return cgrouptest.New(t)
}

// programsOf counts the programs on a cgroup's hook for TCP's options.
func programsOf(t *testing.T, cgroup string) int {
	t.Helper()
	f, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	found, err := link.QueryPrograms(link.QueryOptions{Target: int(f.Fd()), Attach: ebpf.AttachCGroupSockOps})
	if err != nil {
		t.Fatal(err)
	}
	return len(found.Programs)
}
