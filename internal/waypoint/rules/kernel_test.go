package rules_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

func TestExpiry(t *testing.T) {
	k := open(t, netnstest.New(t), rules.Options{})
	if err := k.Install(rules.State{}); err != nil {
		t.Fatal(err)
	}
	short := mapping("192.0.2.1", 443, "198.51.100.1:443", 1, 50*time.Millisecond)
	// A mapping whose life has ended on the way must not live for ever.
	ended := mapping("192.0.2.2", 443, "198.51.100.1:443", 1, -time.Second)
	if err := k.Commit(rules.Change{Add: []rules.Mapping{short, ended}}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		state, _, err := k.Load()
		if err != nil {
			t.Fatal(err)
		}
		if len(state.Mappings) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %+v", state.Mappings)
		}
		time.Sleep(10 * time.Millisecond)
	}
	// Renewing a just expired mapping, and adding it elsewhere, works, swept or not.
	short.Server = netip.MustParseAddrPort("198.51.100.2:443")
	short.Left, ended.Left = time.Minute, time.Minute
	if err := k.Commit(rules.Change{Add: []rules.Mapping{short}, Renew: []rules.Mapping{ended}}); err != nil {
		t.Fatal(err)
	}
}

func TestManyMappingsAreReadBack(t *testing.T) {
	const n = 20_000
	ns := netnstest.New(t)
	k := open(t, ns, rules.Options{})
	var s rules.State
	for i := range n {
		s.Mappings = append(s.Mappings, rules.Mapping{
			Client: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Port: 443,
			Server: netip.MustParseAddrPort("198.51.100.1:443"), Member: 1, Left: time.Hour})
	}
	if err := k.Install(s); err != nil {
		t.Fatal(err)
	}
	// Right after the filling, while the kernel's hash table still grows.
	state, _, err := open(t, ns, rules.Options{}).Load()
	if err != nil || len(state.Mappings) != n {
		t.Errorf("%d mappings of %d, %v", len(state.Mappings), n, err)
	}
}

func TestDeleteIsIdempotent(t *testing.T) {
	ns := netnstest.New(t)
	k := open(t, ns, someOptions)
	if err := k.Install(someState); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ns.Must(t, rules.Delete)
		if present, err := k.Present(); err != nil || present {
			t.Errorf("present %v, %v", present, err)
		}
	}
	if left := ns.Output(t, "nft", "list", "ruleset"); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// BenchmarkCommit measures a lone mapping and batches, in a table with 100,000 others.
func BenchmarkCommit(b *testing.B) {
	k := open(b, netnstest.New(b), someOptions)
	var s rules.State
	for i := range 100_000 {
		s.Mappings = append(s.Mappings, rules.Mapping{
			Client: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Port: 443,
			Server: netip.MustParseAddrPort("198.51.100.1:443"), Member: 1, Left: time.Hour})
	}
	if err := k.Install(s); err != nil {
		b.Fatal(err)
	}
	for name, size := range map[string]int{"lone": 1, "hundred": 100} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := k.Commit(rules.Change{Renew: s.Mappings[:size]}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(size)*float64(b.N)/b.Elapsed().Seconds(), "mappings/s")
		})
	}
}

// A table that lost rules is not taken for whole, neither by the agent that wrote it nor by the next one, and the loss is
// reported. What others add is left alone.
func TestLostRules(t *testing.T) {
	for name, o := range map[string]rules.Options{"plain": {}, "in-band": {InBand: rules.InBandOpen}, "all": someOptions} {
		for _, command := range []string{"flush table inet dcol", "flush chain inet dcol forward", "flush chain inet dcol member_1_mapped"} {
			t.Run(name+"/"+command, func(t *testing.T) {
				t.Parallel()
				ns := netnstest.New(t)
				k := open(t, ns, o)
				state := rules.State{
					Mappings: []rules.Mapping{mapping("192.0.2.1", 443, "198.51.100.1:443", 1, time.Hour)},
					Members:  []rules.Member{{ID: 1, Name: "alice"}},
				}
				if err := k.Install(state); err != nil {
					t.Fatal(err)
				}
				whole := func(when string, want bool) {
					t.Helper()
					if present, err := k.Present(); err != nil || present != want {
						t.Errorf("%s: present %v, want %v (%v)", when, present, want, err)
					}
					next := open(t, ns, o)
					loaded, same, err := next.Load()
					if err != nil || same != want || len(loaded.Mappings) != 1 {
						t.Errorf("%s: the next agent finds %+v, the same %v, want %v (%v)", when, loaded, same, want, err)
					}
					if present, err := next.Present(); want && (err != nil || !present) {
						t.Errorf("%s: the next agent finds it present %v (%v)", when, present, err)
					}
				}
				whole("installed", true)
				if err := k.Commit(rules.Change{Renew: state.Mappings}); err != nil {
					t.Fatal(err)
				}
				ns.Output(t, "nft", "insert rule inet dcol forward counter")
				whole("with a rule of somebody else", true)
				next := open(t, ns, o)
				if _, _, err := next.Load(); err != nil {
					t.Fatal(err)
				}
				ns.Output(t, "nft", command)
				for _, removed := range []<-chan struct{}{k.Removed(), next.Removed()} {
					select {
					case <-removed:
					case <-time.After(30 * time.Second):
						t.Fatal("the loss is not reported")
					}
				}
				whole("after the loss", false)
				if present, err := next.Present(); err != nil || present {
					t.Errorf("the agent that took over finds it present %v (%v)", present, err)
				}
				if err := k.Install(state); err != nil {
					t.Fatal(err)
				}
				whole("installed again", true)
			})
		}
	}
}
