package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/lab/testbed"
)

const cflbSecret = etc + "cflb-secret"

// newRouter returns a balanced network whose first router has a configuration for the router role. The kernel's own
// hashing there is by addresses only.
func newRouter(t *testing.T, width int) *world {
	n := balanced(t, width)
	w := &world{T: t, net: n, dir: t.TempDir(), explained: true}
	w.found("collective", "first")
	w.identify("collective", "first")
	for _, host := range []string{"client", "first"} {
		w.write(host, cflbSecret, []byte("secret of the network\n"), 0o600)
	}
	w.configure("first", "name = \"first\"\nroles = [\"router\"]\n"+fmt.Sprintf(identityTable, "first")+"[router]\nradix = 4\n")
	for _, version := range []string{"ipv4", "ipv6"} {
		w.sysctl("first", "net."+version+".fib_multipath_hash_policy", "0")
	}
	return w
}

// policy returns how the router's kernel hashes.
func (w *world) policy() string {
	w.Helper()
	return strings.Fields(w.run("first", "sysctl", "-n", "net.ipv4.fib_multipath_hash_policy"))[0]
}

// linked returns the number of TCX programs at the router's first interface.
func (w *world) linked() int {
	w.Helper()
	near, err := w.host("first").Link("near")
	if err != nil {
		w.Fatal(err)
	}
	found, err := testbed.On(w.host("first"), func() (*link.QueryResult, error) {
		return link.QueryPrograms(link.QueryOptions{Target: near.Attrs().Index, Attach: ebpf.AttachTCXIngress})
	})
	if err != nil && !errors.Is(err, unix.EINVAL) { // of a kernel without TCX
		w.Fatal(err)
	}
	if err != nil {
		return 0
	}
	return len(found.Programs)
}

// chooses reports whether the router has a program of dcol's at its first interface: by TCX, or on kernels before 6.6 as a
// filter.
func (w *world) chooses() bool {
	w.Helper()
	return w.linked() > 0 || strings.Contains(w.run("first", "tc", "filter", "show", "dev", "near", "ingress"), "dcol-balance")
}

// towardsServer returns the router's route to the server as its status describes it.
func (w *world) towardsServer() (route api.BalancedRoute, err error) {
	s, err := w.status("first")
	if err != nil {
		return route, err
	}
	for _, r := range s.Router.Routes {
		if r.Prefix.Contains(w.addr4(server)) {
			return r, nil
		}
	}
	return route, fmt.Errorf("no route to the server in %+v", s.Router)
}

// TestRouter: a router forwards connections along the paths that a source computes, follows its routes, and leaves
// nothing behind, even after it was killed. Its route has several next hops of its own, or a group of nexthop objects.
func TestRouter(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]bool{"next hops": false, "group": true} {
		t.Run(name, func(t *testing.T) { routes(t, group) })
	}
}

// nexthopGroup is the id of the group of nexthop objects; those have the ids from 1 on.
const nexthopGroup = "100"

// group has the route to the server lead to a group of nexthop objects.
func (w *world) group(r api.BalancedRoute) {
	w.Helper()
	var ids []string
	for i, hop := range r.NextHops {
		id := fmt.Sprint(i + 1)
		w.run("first", "ip", "nexthop", "add", "id", id, "via", hop.Gateway.String(), "dev", hop.Interface)
		ids = append(ids, id)
	}
	w.run("first", "ip", "nexthop", "add", "id", nexthopGroup, "group", strings.Join(ids, "/"))
	w.run("first", "ip", "route", "replace", r.Prefix.String(), "nhid", nexthopGroup)
}

// withoutFirst changes the route to the server: its first next hop is left out.
func (w *world) withoutFirst(r api.BalancedRoute, group bool) {
	w.Helper()
	if group {
		var ids []string
		for i := range r.NextHops[1:] {
			ids = append(ids, fmt.Sprint(i+2))
		}
		w.run("first", "ip", "nexthop", "replace", "id", nexthopGroup, "group", strings.Join(ids, "/"))
		return
	}
	fewer := []string{"ip", "route", "replace", r.Prefix.String()}
	for _, hop := range r.NextHops[1:] {
		fewer = append(fewer, "nexthop", "via", hop.Gateway.String())
	}
	w.run("first", fewer...)
}

func routes(t *testing.T, group bool) {
	const width = 4
	w := newRouter(t, width)
	w.start("first")
	w.eventually("the route is followed", func() error {
		r, err := w.towardsServer()
		return holds(err == nil && len(r.NextHops) == width && r.Left == "", "%+v, %v", r, err)
	})
	if group {
		r, err := w.towardsServer()
		if err != nil {
			t.Fatal(err)
		}
		w.group(r)
		w.eventually("the group is followed", func() error {
			now, err := w.towardsServer()
			return holds(err == nil && len(now.NextHops) == width && now.Left == "", "%+v, %v", now, err)
		})
	}
	if w.policy() != "1" || !w.chooses() {
		t.Error("the kernel does not choose by hashes, or has no program")
	}
	for _, version := range []string{"-4", "-6"} {
		p := findPaths(t, w.net, version, "--radix", "4", "--secret-file", cflbSecret)
		if !p.Reached || p.Count != width || len(p.Distinct) != width || p.Sent > 100 {
			t.Fatalf("%s: reached %v, %d paths with %d probes, ports of %d", version, p.Reached, p.Count, p.Sent, len(p.Distinct))
		}
		seen := map[string]bool{}
		for _, d := range p.Distinct {
			links := taken(t, w.net, width, p, d.SourcePort)
			for try := 1; len(links) != 1 && try < 5; try++ { // others' packets
				links = taken(t, w.net, width, p, d.SourcePort)
			}
			seen[strings.Join(links, " ")] = true
		}
		if len(seen) != width {
			t.Errorf("%s: the ports lead over %v", version, seen)
		}
	}
	if said := w.dcol("first", "status"); !strings.Contains(said, "Router (speck32, radix 4): ") || !strings.Contains(said, "by ports") {
		t.Errorf("status:\n%s", said)
	}
	r, _ := w.towardsServer()
	w.withoutFirst(r, group)
	w.eventually("the changed route is followed", func() error {
		now, err := w.towardsServer()
		return holds(err == nil && len(now.NextHops) == width-1 && now.NextHops[0] == r.NextHops[1], "%+v, %v", now, err)
	})
	w.endAgent("first", "KILL")
	w.eventually("the kernel has detached the program of the killed agent", func() error { // it closes files a moment later
		return holds(w.linked() == 0, "it is attached")
	})
	p := findPaths(t, w.net, "-4", "--bound", "0.0001")
	if !p.Reached || p.Count != width-1 {
		t.Errorf("without its agent: reached %v, %d paths: %+v", p.Reached, p.Count, p)
	}
	w.dcol("first", "down")
	if w.policy() != "0" || w.chooses() {
		t.Error("dcol down leaves something behind")
	}
	w.start("first")
	w.endAgent("first", "TERM")
	if w.policy() != "0" || w.chooses() {
		t.Error("the agent leaves something behind")
	}
}
