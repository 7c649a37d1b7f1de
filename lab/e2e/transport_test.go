package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/lab/testbed"
)

const asking = `
[options.ask]
user_timeout   = "1s"
congestion     = "reno"
initial_window = 25
ack_delay      = 100
ack_segments   = 2
rate           = "40mbit"
`

const granting = `
[options.accept]
user_timeout_min = "1m"
user_timeout_max = "10m"
congestion       = ["reno"]
initial_window   = 20
trusted          = ["10.0.0.0/8"]
ack_delay        = true
rate_min         = "50mbit"

[[congestion]]
use   = "cubic"
ports = [80]
`

// exchanged returns what a host has exchanged.
func (w *world) exchanged(host string) (t api.Transport) {
	w.Helper()
	d := json.NewDecoder(strings.NewReader(w.run(host, program, "option", "list", "--json")))
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		w.Fatal(err)
	}
	return t
}

// The server's agent has the rights of the packaged service, chooses a congestion control, and grants what alice asks by
// TCP options, beside MPTCP and in-band detours. A middlebox that removes the options costs nothing.
func TestTransport(t *testing.T) {
	w := newWorld(t)
	w.found("collective", alice, bob, server)
	for _, host := range []string{alice, bob, server} {
		w.identify("collective", host)
	}
	w.configure(alice, clientOfAll(kindsLine("in-band"), w.addr4(bob).String())+asking)
	w.configure(bob, waypointConfig(labAllowed))
	w.configure(server, strings.ReplaceAll(waypointConfig(labAllowed), bob, server)+granting)
	// The lab locks its default on the routes where the machine allows no program to choose it. Nothing can change that.
	if err := w.host(server).SetCongestionControl("reno"); err != nil {
		t.Fatal(err)
	}
	w.start(server)
	w.serve() // after the agent, which sees listeners when they begin
	w.startBoth()
	for _, host := range []string{alice, server} {
		if problems := w.mustStatus(host).Problems; len(problems) > 0 {
			t.Skipf("needs eBPF and cgroup v2: %q", problems)
		}
	}

	x := w.curl(w.url())
	c := w.subflows("direct up", "in-band up")
	want := []string{
		"congestion reno granted reno", "initial-window 25 segments capped 20 segments", "user-timeout 1s capped 1m0s",
		"rate 40.0 Mbit/s capped 50.0 Mbit/s",
	}
	direct := c.Subflows[slices.IndexFunc(c.Subflows, func(s api.Subflow) bool { return s.Kind == "direct" })]
	var recent []api.OptionReport
	w.eventually("the server grants", func() error {
		recent = w.exchanged(server).Options.Recent
		for _, wanted := range append(want, "delayed-ack") {
			if !slices.ContainsFunc(recent, func(r api.OptionReport) bool {
				return strings.HasPrefix(strings.Join([]string{r.Option, r.Asked, r.Verdict, r.Granted}, " "), wanted)
			}) {
				return fmt.Errorf("%s is not among %+v", wanted, recent)
			}
		}
		return nil
	})
	for _, r := range recent {
		if r.Remote != direct.Local {
			t.Errorf("asked by %v, and the direct subflow is %v: %+v", r.Remote, direct.Local, r)
		}
	}
	if list := w.exchanged(server); len(list.Congestion) != 1 || list.Congestion[0].Set < 2 || list.Congestion[0].Refused > 0 {
		t.Errorf("the server has chosen for %+v", list.Congestion)
	}
	// The direct subflow has what alice asked, and the detour what the server's table says.
	w.eventually("each subflow has its congestion control", func() error {
		now := w.run(server, "ss", "-tinH", "state", "established", "sport = :80")
		return holds(strings.Count(now, "cubic") == 1 && strings.Count(now, "reno") == 1, "%s", now)
	})
	x.endsWell()
	w.says(w.try(alice, program, "option", "show"), "for congestion: reno: sent")
	w.says(w.try(server, program, "option", "show"), "asked", "for user-timeout: 1s: capped, 1m0s (within the bounds")
	w.says(w.try(server, program, "option", "list"), "initial-window", "up to 20 segments to [10.0.0.0/8]", "1 capped")
	w.says(w.try(server, program, "cc", "list"), "cubic: connections to port 80; set for")
	w.says(w.try(alice, program, "cc", "list"), "all other connections")

	// Now the router removes all experimental options.
	had := len(w.exchanged(server).Options.Recent)
	w.middlebox(testbed.StripOptions)
	x = w.curl(w.url())
	x.endsWell()
	recent = w.exchanged(server).Options.Recent
	for _, r := range recent[had:] {
		if r.Option != "user-timeout" { // which is not experimental, and not negotiated
			t.Errorf("got through: %+v", r)
		}
	}
}

// What needs more rights than the packaged service has is refused in words, and all else works.
func TestTransportWithoutRights(t *testing.T) {
	w := standard(newWorld(t))
	w.configure(alice, clientConfig("mptcpify = \"host\"\n", w.addr4(bob).String())+"\n[[congestion]]\nuse = \"lia\"\n")
	w.startBoth()
	problems := w.mustStatus(alice).Problems
	lacking := []string{"a table does not apply ([[congestion]] use = \"lia\")"}
	if !netnstest.KernelBefore(t, 6, 6) {
		lacking = append(lacking, "sockets do not become MPTCP ([client] mptcpify = \"host\")")
	}
	for _, what := range lacking {
		if !slices.ContainsFunc(problems, func(said string) bool {
			return strings.Contains(said, what) && strings.Contains(said, "CAP_PERFMON") && strings.Contains(said, "docs/security.md")
		}) {
			t.Errorf("no problem says %q and its fix: %q", what, problems)
		}
	}
	w.says(w.try(alice, program, "cc", "list"), "PROBLEM:", "CAP_PERFMON")
	x := w.curl(w.url())
	w.detoured()
	x.endsWell()
}
