package netstate

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// describeRoutes returns the multipath routes, one a line.
func describeRoutes(t *testing.T) string {
	t.Helper()
	routes, _, err := MultipathRoutes()
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, r := range routes {
		text += r.Prefix.String()
		if r.Resilient {
			text += " resilient"
		}
		for _, n := range r.NextHops {
			text += fmt.Sprintf(" %v*%d", n.Gateway, n.Weight)
			if n.Dead {
				text += "(dead)"
			}
		}
		text += "\n"
	}
	return text
}

// TestMultipathRoutes reads the kernel's routes: legacy ones, groups of nexthop objects, and all that is not meant.
func TestMultipathRoutes(t *testing.T) {
	ns := netnstest.New(t)
	ip := func(args ...string) { t.Helper(); ns.Output(t, "ip", args...) }
	for i := range 3 {
		name := fmt.Sprint("d", i)
		ip("link", "add", name, "type", "veth", "peer", "name", fmt.Sprint("e", i))
		ip("link", "set", fmt.Sprint("e", i), "up")
		ip("addr", "add", fmt.Sprintf("10.0.%d.1/24", i), "dev", name)
		ip("addr", "add", fmt.Sprintf("fd00:%d::1/64", i), "dev", name, "nodad")
		ip("link", "set", name, "up")
	}
	check := func(what, want string) {
		t.Helper()
		ns.Must(t, func() error {
			if got := describeRoutes(t); got != want {
				t.Errorf("%s:\n%swant\n%s", what, got, want)
			}
			return nil
		})
	}
	check("none", "")
	ip("route", "add", "10.7.0.0/16", "nexthop", "via", "10.0.1.2", "nexthop", "via", "10.0.0.2")
	ip("route", "add", "10.7.9.0/24", "via", "10.0.2.2")
	ip("route", "add", "10.6.9.0/24", "via", "10.0.2.2")
	ns.Must(t, func() error {
		_, within, err := MultipathRoutes()
		if want := []netip.Prefix{netip.MustParsePrefix("10.7.9.0/24")}; !slices.Equal(within, want) {
			t.Errorf("within others are %v, not %v", within, want)
		}
		return err
	})
	ip("route", "del", "10.7.9.0/24")
	ip("route", "del", "10.6.9.0/24")
	ip("route", "del", "10.7.0.0/16")
	ip("route", "add", "10.9.0.0/16", "nexthop", "via", "10.0.1.2", "nexthop", "via", "10.0.0.2", "weight", "3")
	ip("route", "add", "10.9.0.0/16", "via", "10.0.2.2", "metric", "100")
	ip("route", "add", "10.8.0.0/16", "via", "10.0.2.2")
	ip("route", "add", "10.8.0.0/16", "metric", "7", "nexthop", "via", "10.0.1.2", "nexthop", "via", "10.0.0.2")
	ip("route", "add", "10.7.0.0/16", "table", "77", "nexthop", "via", "10.0.1.2", "nexthop", "via", "10.0.0.2")
	ip("route", "add", "default", "nexthop", "via", "10.0.1.2", "nexthop", "via", "10.0.0.2", "nexthop", "via", "10.0.2.2")
	ip("-6", "route", "add", "fd09::/16", "nexthop", "via", "fd00:1::2", "nexthop", "via", "fd00:0::2")
	check("legacy routes", "0.0.0.0/0 10.0.1.2*1 10.0.0.2*1 10.0.2.2*1\n10.9.0.0/16 10.0.1.2*1 10.0.0.2*3\nfd09::/16 fd00:1::2*1 fd00::2*1\n")
	ip("route", "flush", "10.9.0.0/16")
	ip("route", "del", "default")
	ip("-6", "route", "flush", "fd09::/16")
	for i := range 3 {
		ip("nexthop", "add", "id", fmt.Sprint(i+1), "via", fmt.Sprintf("10.0.%d.2", i), "dev", fmt.Sprint("d", i))
	}
	ip("nexthop", "add", "id", "10", "group", "3/1/2,5")
	ip("nexthop", "add", "id", "11", "group", "1/2", "type", "resilient", "buckets", "8")
	ip("route", "add", "10.9.0.0/16", "nhid", "10")
	ip("route", "add", "10.10.0.0/16", "nhid", "11")
	check("groups", "10.9.0.0/16 10.0.2.2*1 10.0.0.2*1 10.0.1.2*5\n10.10.0.0/16 resilient 10.0.0.2*1 10.0.1.2*1\n")
	ip("nexthop", "replace", "id", "10", "group", "1/2")
	check("a replaced group", "10.9.0.0/16 10.0.0.2*1 10.0.1.2*1\n10.10.0.0/16 resilient 10.0.0.2*1 10.0.1.2*1\n")
}

// TestWatchRoutes has a change of a group's members noticed.
func TestWatchRoutes(t *testing.T) {
	ns := netnstest.New(t)
	ns.Output(t, "ip", "link", "add", "w0", "type", "veth", "peer", "name", "w1")
	ns.Output(t, "ip", "link", "set", "w1", "up")
	ns.Output(t, "ip", "link", "set", "w0", "up")
	ns.Output(t, "ip", "addr", "add", "10.0.0.1/24", "dev", "w0")
	ns.Output(t, "ip", "nexthop", "add", "id", "1", "via", "10.0.0.2", "dev", "w0")
	ns.Output(t, "ip", "nexthop", "add", "id", "2", "via", "10.0.0.3", "dev", "w0")
	ns.Output(t, "ip", "nexthop", "add", "id", "10", "group", "1/2")
	ctx, cancel := context.WithCancel(t.Context())
	var changes <-chan struct{}
	ns.Must(t, func() (err error) {
		changes, err = WatchRoutes(ctx)
		return err
	})
	await := func(what string) {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: not noticed", what)
		}
	}
	await("the first state")
	ns.Output(t, "ip", "nexthop", "replace", "id", "10", "group", "1")
	await("a replaced group")
	ns.Output(t, "ip", "route", "add", "10.9.0.0/16", "dev", "w0")
	await("a route")
	cancel()
	for range changes {
	}
}

func TestForeignRules(t *testing.T) {
	ns := netnstest.New(t)
	check := func(want bool) {
		t.Helper()
		ns.Must(t, func() error {
			got, err := ForeignRules()
			if got != want {
				t.Errorf("foreign rules: %t, want %t", got, want)
			}
			return err
		})
	}
	check(false)
	ns.Output(t, "ip", "-6", "rule", "add", "fwmark", "7", "table", "77")
	check(true)
}

// FuzzDecodeRoute decodes damaged descriptions of routes and next hops.
func FuzzDecodeRoute(f *testing.F) {
	f.Add([]byte{2, 16, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0, 8, 0, 1, 0, 10, 9, 0, 0, 12, 0, 9, 0, 8, 0, 0, 0, 3, 0, 0, 0})
	f.Add([]byte{10, 129, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0})
	f.Add([]byte{2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0, 9, 0, 0, 0, 12, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decodeRoute(b); err == nil && r.prefix != r.prefix.Masked() {
			t.Errorf("prefix %v has bits behind its length", r.prefix)
		}
		for _, n := range must(decodeNextHops(b)) {
			if n.Weight < 1 || n.Weight > 256 {
				t.Errorf("weight %d", n.Weight)
			}
		}
		if o, err := decodeNextHopObject(b); err == nil && o.hop.Gateway == netip.IPv4Unspecified() && o.id == 0 && len(o.members) > len(b) {
			t.Errorf("%d members of %d bytes", len(o.members), len(b))
		}
	})
}

func must(all []NextHop, err error) []NextHop {
	if err != nil {
		return nil
	}
	return all
}
