package rules_test

import (
	"cmp"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
	"github.com/detour-collective/dcol/internal/waypoint/rules/rulestest"
)

var update = flag.Bool("update", false, "write the golden files anew")

func mapping(client string, port uint16, server string, member rules.MemberID, left time.Duration) rules.Mapping {
	return rules.Mapping{Client: netip.MustParseAddr(client), Port: port, Server: netip.MustParseAddrPort(server), Member: member, Left: left}
}

func admission(addr string, kind wire.Kind, member rules.MemberID, left time.Duration) rules.Admission {
	return rules.Admission{Addr: netip.MustParseAddr(addr), Kind: kind, Member: member, Left: left}
}

func addrRange(first, last string) egress.Range {
	return egress.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
}

var (
	someOptions = rules.Options{Connections: 100, Rate: 50, Bandwidth: 12_500_000, Total: 62_500_000, Quota: 100e9, InBand: rules.InBandAuthenticated, Converter: 5124}
	someState   = rules.State{
		Mappings: []rules.Mapping{
			mapping("192.0.2.1", 443, "198.51.100.1:443", 1, 10*time.Minute),
			mapping("192.0.2.1", 20000, "198.51.100.2:443", 1, 5*time.Minute),
			mapping("2001:db8::1", 443, "[2001:db8:1::1]:8443", 2, 10*time.Minute),
		},
		Admissions: []rules.Admission{
			admission("10.77.0.2", wire.OpenVPN, 2, 10*time.Minute),
			admission("192.0.2.1", wire.InBand, 1, 10*time.Minute),
			admission("fd77::2", wire.WireGuard, 2, 10*time.Minute),
			{Kind: wire.Converter, Member: 1, Left: 10 * time.Minute},
		},
		Members:          []rules.Member{{ID: 1, Name: "alice", Serial: "0a"}, {ID: 2, Name: "bob", Serial: "0b"}},
		TunnelInterfaces: []string{"dcolov", "dcolwg"},
		Forbidden: []egress.Range{
			addrRange("0.0.0.0", "0.255.255.255"), addrRange("10.0.0.0", "10.255.255.255"), addrRange("192.0.2.77", "192.0.2.77"),
			addrRange("224.0.0.0", "255.255.255.255"),
			addrRange("::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), addrRange("fd00::1", "fd00::1"),
		},
		ForbiddenPorts: []uint16{25, 587},
		Guarded4:       []string{"eth0", "wg0"},
		Guarded6:       []string{"eth0"},
		Closed:         true,
		Used:           7e9,
		Stopped:        []rules.MemberID{2},
		Awaited:        []rules.MemberID{1, 2},
		Await:          30 * time.Second,
	}
)

func TestRender(t *testing.T) {
	for name, c := range map[string]struct {
		options rules.Options
		state   rules.State
	}{
		"full":  {someOptions, someState},
		"open":  {rules.Options{InBand: rules.InBandOpen}, someState},
		"empty": {},
	} {
		t.Run(name, func(t *testing.T) {
			netnstest.CompareTable(t, filepath.Join("testdata", name+".nft"), rules.Render(c.options, c.state), *update)
			if t.Failed() {
				t.Log("if the change is right, count up schemaVersion")
			}
		})
	}
}

// The text that a person reads and the expressions that the kernel gets are written side by side:
// here nft loads the one, we the other, and nft lists both.
func TestTextAndExpressionsAreTheSameTable(t *testing.T) {
	plain := someState
	plain.Admissions = slices.DeleteFunc(slices.Clone(plain.Admissions), func(a rules.Admission) bool { return a.Kind == wire.InBand || a.Kind == wire.Converter })
	for name, c := range map[string]struct {
		options rules.Options
		state   rules.State
	}{
		"limits":       {someOptions, someState},
		"no limits":    {rules.Options{}, plain},
		"open in-band": {rules.Options{InBand: rules.InBandOpen, Connections: 1, Converter: 5124}, someState},
	} {
		t.Run(name, func(t *testing.T) {
			byText, byUs := netnstest.New(t), netnstest.New(t)
			file, text := filepath.Join(t.TempDir(), "table.nft"), rules.Render(c.options, c.state)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			byText.Output(t, "nft", "-f", file)
			if err := open(t, byUs, c.options).Install(c.state); err != nil {
				t.Fatal(err)
			}
			list := func(ns *netnstest.NS) string {
				out := ns.Output(t, "nft", "-n", "list", "table", "inet", "dcol")
				out = regexp.MustCompile(` expires [0-9a-z]+`).ReplaceAllString(out, "")
				return sortElements(out)
			}
			if diff := gocmp.Diff(list(byText), list(byUs)); diff != "" {
				t.Errorf("(-by nft +by us):\n%s", diff)
			}
			// The output of nft list, as an operator may save it, can be loaded again.
			saved := filepath.Join(t.TempDir(), "saved.nft")
			if err := os.WriteFile(saved, []byte("flush ruleset\n"+byUs.Output(t, "nft", "list", "ruleset")), 0o600); err != nil {
				t.Fatal(err)
			}
			byUs.Output(t, "nft", "-f", saved)
			// Saving loses the servers of in-band SYNs, and that is noticed.
			wantSame := c.options.InBand == rules.InBandOff
			after := open(t, byUs, c.options)
			if state, same, err := after.Load(); err != nil || same != wantSame || len(state.Mappings) != len(c.state.Mappings) ||
				len(state.Admissions) != len(c.state.Admissions) {
				t.Errorf("after saving and loading: %+v, %v, %v", state, same, err)
			}
			if present, err := after.Present(); err != nil || present != wantSame {
				t.Errorf("after saving and loading: present %v, %v", present, err)
			}
		})
	}
}

// sortElements puts elements, which the kernel lists in the order of their hashes, into one order.
func sortElements(list string) string {
	return regexp.MustCompile(`(?s)elements = \{.*?\}`).ReplaceAllStringFunc(list, func(s string) string {
		parts := strings.Split(strings.Trim(strings.TrimPrefix(s, "elements = "), "{}"), ",")
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}
		slices.Sort(parts)
		return "elements = { " + strings.Join(parts, ", ") + " }"
	})
}

func open(t testing.TB, ns *netnstest.NS, o rules.Options) *rules.Table {
	t.Helper()
	var table *rules.Table
	ns.Must(t, func() (err error) {
		table, err = rules.Open(o)
		return err
	})
	t.Cleanup(func() { _ = table.Close() })
	return table
}

// The fake and the kernel answer alike.
func TestKernel(t *testing.T) {
	t.Run("fake", func(t *testing.T) {
		f := rulestest.New(someOptions)
		testKernel(t, func(t *testing.T, o rules.Options) rules.Kernel { f.Reopen(o); return f })
	})
	t.Run("real", func(t *testing.T) {
		ns := netnstest.New(t)
		testKernel(t, func(t *testing.T, o rules.Options) rules.Kernel { return open(t, ns, o) })
	})
}

func testKernel(t *testing.T, open func(*testing.T, rules.Options) rules.Kernel) {
	k := open(t, someOptions)
	if present, err := k.Present(); err != nil || present {
		t.Errorf("before: present %v, %v", present, err)
	}
	if state, same, err := k.Load(); err != nil || same || len(state.Mappings) > 0 {
		t.Errorf("before: %+v, %v, %v", state, same, err)
	}
	a := someState.Mappings[0]
	if err := k.Commit(rules.Change{Add: []rules.Mapping{a}}); err == nil {
		t.Error("a change without a table was done")
	}
	if used, err := k.Used(); err == nil {
		t.Errorf("without a table %d were used", used)
	}
	if err := k.Install(someState); err != nil {
		t.Fatal(err)
	}
	if present, err := k.Present(); err != nil || !present {
		t.Errorf("after: present %v, %v", present, err)
	}
	wantState(t, k, someState)

	added := mapping("192.0.2.9", 443, "198.51.100.1:443", 3, time.Minute)
	added6 := mapping("2001:db8::9", 443, "[2001:db8:1::1]:443", 3, time.Minute)
	renewed := a
	renewed.Left = time.Hour
	removed := someState.Mappings[1]
	gone := mapping("192.0.2.77", 443, "198.51.100.1:443", 1, time.Minute) // expired before we knew
	// Two members behind one address; an address in a tunnel that changes hands; one renewed.
	keyed := []rules.Admission{admission("192.0.2.1", wire.InBand, 1, time.Hour), admission("192.0.2.1", wire.InBand, 2, time.Minute)}
	changesHands := admission("fd77::2", wire.WireGuard, 3, time.Minute)
	converted := rules.Admission{Kind: wire.Converter, Member: 2, Left: time.Hour}
	err := k.Commit(rules.Change{
		Admit:  append(keyed, changesHands, converted),
		Revoke: []rules.Admission{someState.Admissions[0], someState.Admissions[2], someState.Admissions[3], admission("10.77.0.9", wire.OpenVPN, 1, time.Minute)},

		Add: []rules.Mapping{added, added6}, Renew: []rules.Mapping{renewed}, Remove: []rules.Mapping{removed, gone},
		Members: []rules.Member{{ID: 1, Name: "alice", Serial: "0c"}, {ID: 3, Name: "carol", Serial: "0d"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := rules.State{
		Mappings:   []rules.Mapping{renewed, added, someState.Mappings[2], added6},
		Admissions: append([]rules.Admission{converted}, append(keyed, changesHands)...),
		Members: []rules.Member{{ID: 1, Name: "alice", Serial: "0c"}, {ID: 2, Name: "bob", Serial: "0b"},
			{ID: 3, Name: "carol", Serial: "0d"}},
		TunnelInterfaces: someState.TunnelInterfaces, Forbidden: someState.Forbidden, ForbiddenPorts: someState.ForbiddenPorts,
		Guarded4: someState.Guarded4, Guarded6: someState.Guarded6, Closed: someState.Closed, Used: someState.Used,
		Stopped: someState.Stopped,
	}
	wantState(t, k, want)
	want.Closed, want.Used, want.Stopped = false, 42, []rules.MemberID{1, 4095}
	if err := errors.Join(k.SetClosed(want.Closed), k.SetUsed(want.Used), k.SetStopped(want.Stopped)); err != nil {
		t.Fatal(err)
	}
	if used, err := k.Used(); err != nil || used != 42 {
		t.Errorf("used %d, %v", used, err)
	}
	wantState(t, k, want)
	want.Forbidden = []egress.Range{addrRange("10.0.0.0", "11.255.255.255"), addrRange("fd00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")}
	want.TunnelInterfaces = []string{"dcolwg"}
	if err := errors.Join(k.SetForbidden(want.Forbidden), k.SetTunnelInterfaces(want.TunnelInterfaces)); err != nil {
		t.Fatal(err)
	}
	wantState(t, k, want)

	// A change that cannot be done whole is not done at all.
	elsewhere := mapping("192.0.2.1", 443, "198.51.100.99:443", 1, time.Minute)
	other := mapping("192.0.2.10", 443, "198.51.100.1:443", 1, time.Minute)
	for name, ch := range map[string]rules.Change{
		"add what is there":           {Add: []rules.Mapping{other, a}},
		"add where another is":        {Add: []rules.Mapping{other, elsewhere}},
		"renew what leads elsewhere":  {Add: []rules.Mapping{other}, Renew: []rules.Mapping{elsewhere}},
		"remove what leads elsewhere": {Add: []rules.Mapping{other}, Remove: []rules.Mapping{elsewhere}},
		"admit to another's address":  {Add: []rules.Mapping{other}, Admit: []rules.Admission{admission("fd77::2", wire.WireGuard, 1, time.Minute)}},
		"revoke another's address":    {Add: []rules.Mapping{other}, Revoke: []rules.Admission{admission("fd77::2", wire.WireGuard, 1, time.Minute)}},
	} {
		if err := k.Commit(ch); err == nil {
			t.Errorf("%s: no error", name)
		}
		wantState(t, k, want)
	}

	// Another agent adopts the table if it would write the same, and knows if not.
	if _, same, err := open(t, someOptions).Load(); err != nil || !same {
		t.Errorf("same limits: same %v, %v", same, err)
	}
	k = open(t, rules.Options{Connections: 5})
	// Without in-band detours and a converter, there are no admissions to them.
	want.Admissions = []rules.Admission{changesHands}
	// And without a quota, no count for one.
	want.Used = 0
	if state, same, err := k.Load(); err != nil || same || len(state.Mappings) != 4 || len(state.Admissions) != 1 || state.Used != 42 {
		t.Errorf("other limits: %+v, same %v, %v", state, same, err)
	}
	if err := k.Install(want); err != nil {
		t.Fatal(err)
	}
	wantState(t, k, want)
}

// wantState compares but for the moments that have passed.
func wantState(t *testing.T, k rules.Kernel, want rules.State) {
	t.Helper()
	got, same, err := k.Load()
	if err != nil || !same {
		t.Fatalf("load: same %v, %v", same, err)
	}
	byKey := func(a, b rules.Mapping) int {
		if c := a.Client.Compare(b.Client); c != 0 {
			return c
		}
		return int(a.Port) - int(b.Port)
	}
	byAddr := func(a, b rules.Admission) int {
		return cmp.Or(a.Addr.Compare(b.Addr), int(a.Member)-int(b.Member))
	}
	slices.SortFunc(got.Admissions, byAddr)
	want.Admissions = slices.SortedFunc(slices.Values(want.Admissions), byAddr)
	slices.SortFunc(got.Mappings, byKey)
	want.Mappings = slices.SortedFunc(slices.Values(want.Mappings), byKey)
	want.Awaited, want.Await = nil, 0 // which are not read
	near := gocmp.FilterPath(func(p gocmp.Path) bool { return p.Last().String() == ".Left" },
		gocmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < 30*time.Second }))
	addrs := gocmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	ports := gocmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	if diff := gocmp.Diff(want, got, near, addrs, ports); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}
