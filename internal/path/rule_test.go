package path_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// Of the rules that cover a connection by its server's port, its peer's network and its program's cgroup, the first with the
// innermost cgroup applies.
func TestRuleOfAConnection(t *testing.T) {
	const outer, inner = "/sys/fs/cgroup/user", "/sys/fs/cgroup/user/phone"
	rules := []path.Rule{
		{Name: "web", Ports: []uint16{443, 8443}},
		{Name: "near", Networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:5::/48")}},
		{Name: "outer", Cgroup: outer},
		{Name: "inner", Cgroup: inner, Ports: []uint16{443}},
		{Name: "far web", Ports: []uint16{80}, Networks: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}},
		{Name: "all"},
	}
	for _, c := range []struct{ server, cgroup, want string }{
		{"192.0.2.1:443", "", "web"},
		{"203.0.113.9:8443", "", "web"},
		{"203.0.113.9:22", "", "near"},
		{"[2001:db8:5:1::9]:22", "", "near"},
		{"[2001:db8:6::9]:22", "", "all"},
		{"198.51.100.7:80", "", "far web"},
		{"198.51.100.7:22", "", "all"},
		{"192.0.2.1:80", "", "all"},
		{"203.0.113.9:22", outer, "outer"},
		{"203.0.113.9:443", inner, "inner"},
		{"203.0.113.9:22", inner, "outer"},
		{"203.0.113.9:443", inner + "/call", "inner"},
		{"192.0.2.1:443", inner + "2", "outer"},
		{"192.0.2.1:22", outer + "s", "all"},
	} {
		m := path.New(path.Config{Policy: policy.Detours{Subflows: 1}, Rules: rules})
		server := netip.MustParseAddrPort(c.server)
		local := netip.AddrPortFrom(ip("me"), 5000)
		if server.Addr().Is6() {
			local = netip.MustParseAddrPort("[2001:db8::1]:5000")
		}
		m.Handle(path.ConnEstablished{Token: 1, Local: local, Remote: server, Cgroup: c.cgroup}, birth)
		if got := m.Snapshot(birth).Conns[0].Rule; got != c.want {
			t.Errorf("a connection to %s from cgroup %q has the rule %q, want %q", c.server, c.cgroup, got, c.want)
		}
	}
}

// A connection that waits for more traffic before it takes a second path takes it at once if its only path is lost or
// nothing gets through there.
func TestDelayEndsWithThePath(t *testing.T) {
	for name, lose := range map[string]func(tell func(path.Event), wlan path.Sample){
		"its address is gone": func(tell func(path.Event), _ path.Sample) {
			tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me2")}})
		},
		"nothing gets through": func(tell func(path.Event), wlan path.Sample) {
			wlan.Unacked, wlan.Backoff = 1, 2
			tell(path.Measured{Samples: []path.Sample{wlan}, Complete: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := path.New(path.Config{Policy: policy.Detours{Subflows: 1}, Rules: []path.Rule{{
				Policy: policy.Mesh{Mode: policy.BackupMode}, Start: path.Start{Bytes: 1 << 20},
			}}})
			now, asked := birth, 0
			var tell func(path.Event)
			tell = func(ev path.Event) {
				for _, a := range slices.Clone(m.Handle(ev, now)) {
					switch c, ok := a.(path.CreateSubflow); {
					case ok && c.Direct: // no route leads to the server
						tell(path.CreateFailed{Token: c.Token, LocalID: c.LocalID, Err: errors.New("no route")})
					case ok && c.Kind == path.Uplink:
						asked++
					}
				}
			}
			local, server := netip.AddrPortFrom(ip("me"), 5000), netip.AddrPortFrom(ip("web"), 80)
			tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me"), ip("me2")}})
			tell(path.DetourOffered{Detour: path.Detour{ID: "g", Kind: path.Uplink, Waypoint: "wwan0", Local: ip("me2")}})
			tell(path.ConnEstablished{Token: 1, Local: local, Remote: server})
			now = now.Add(10 * time.Second)
			tell(path.Tick{})
			if asked > 0 {
				t.Fatal("it did not wait")
			}
			lose(tell, path.Sample{Token: 1, Local: local, Remote: server, MinRTT: time.Millisecond})
			for range 10 {
				now = now.Add(time.Second)
				tell(path.Tick{})
			}
			if asked == 0 {
				t.Error("it waits")
			}
		})
	}
}

// For the programs in its cgroup, the kind of traffic that a rule states comes before that of ports.
func TestKindByRule(t *testing.T) {
	for name, c := range map[string]struct {
		rule    path.Rule
		demotes bool
	}{
		"bulk":              {path.Rule{KindSaid: true, Kind: measure.Bulk}, false},
		"messages":          {path.Rule{KindSaid: true, Kind: measure.Messages}, true},
		"short":             {path.Rule{KindSaid: true, Kind: measure.Short}, false},
		"none":              {path.Rule{}, true},
		"another program's": {path.Rule{KindSaid: true, Kind: measure.Bulk, Cgroup: "/sys/fs/cgroup/backup"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSelectionWith(t, map[string]*pathWorth{"": {trip: 40 * time.Millisecond, rate: 800}, "bob": {trip: 200 * time.Millisecond, rate: 800}}, func(cfg *path.Config) {
				cfg.Rules, cfg.MessagePorts = []path.Rule{c.rule}, []uint16{80}
			})
			s.offer("bob")
			s.connect()
			s.messages(10*time.Second, 2*dt)
			if s.over("bob").backup != c.demotes {
				t.Errorf("%v", s.log)
			}
		})
	}
}
