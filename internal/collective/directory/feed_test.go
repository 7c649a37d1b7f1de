package directory

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/collective"
)

// feedWorld is a coordinator and members, connected by a bus that loses, repeats and delays messages.
type feedWorld struct {
	trust   *collective.Trust
	now     time.Time
	certs   []member
	gate    *Directory // the coordinator's copy
	journal *Journal
	epoch   uint64
	told    uint64
	epochs  int
	latest  map[string]*Verified // that the member ever published
	backlog []Batch
	members []*listener
}

// listener is a member, with its directory as rebuilt from events.
type listener struct {
	d      *Directory
	events map[string]*Verified
}

func (w *feedWorld) newStore() {
	w.epoch += 100
	w.epochs++
	w.told = 0
	w.gate = New(DefaultLimits())
	w.journal = NewJournal(w.epoch)
	w.journal.remember, w.journal.most = 2, 2500
}

func (l *listener) hear(t rapid.TB, events []Event) {
	for _, e := range events {
		if l.events[e.Name] != e.Old {
			t.Fatalf("%s %s: the record before was another", e.Name, e.Kind)
		}
		switch e.Kind {
		case Left:
			if e.New != nil || e.Why == "" {
				t.Fatalf("left: %+v", e)
			}
			delete(l.events, e.Name)
		default:
			if (e.Kind == Joined) != (e.Old == nil) {
				t.Fatalf("%s: %+v", e.Kind, e)
			}
			l.events[e.Name] = e.New
		}
	}
}

// catchUp asks until nothing is missing.
func (l *listener) catchUp(t rapid.TB, w *feedWorld) {
	for range 200 {
		ask, behind := l.d.Behind()
		if !behind {
			return
		}
		l.hear(t, l.d.Answer(overTheBus(t, w.journal.Answer(ask)), w.trust, w.now))
	}
	t.Fatal("never up to date")
}

func overTheBus(t rapid.TB, b Batch) Batch {
	data, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeBatch(data)
	if err != nil {
		t.Fatal(err)
	}
	return back
}

// check checks the invariants.
func (l *listener) check(t rapid.TB) {
	d := l.d
	bytes := 0
	var claimed subnets
	keys := map[WireGuardKey]string{}
	for name, e := range d.entries {
		r := &e.Record
		if r.Name != name || l.events[name] != e.Verified {
			t.Fatalf("%s is not what was told", name)
		}
		bytes += e.Signed.Size()
		if others := claimed.overlapping(r.Subnet, name); len(others) > 0 {
			t.Fatalf("%s and %v share %v", name, others, r.Subnet)
		}
		claimed.add(r.Subnet, name)
		if !r.Key.IsZero() {
			if other := keys[r.Key]; other != "" {
				t.Fatalf("%s and %s have one key", name, other)
			}
			keys[r.Key] = name
		}
	}
	if len(l.events) != d.Len() || bytes != d.Bytes() || !slices.Equal(claimed, d.subnets) || !maps.Equal(keys, d.keys) {
		t.Fatalf("%d of %d members, %d of %d bytes, subnets %v of %v, keys %v of %v",
			d.Len(), len(l.events), d.Bytes(), bytes, d.subnets, claimed, d.keys, keys)
	}
}

// Whatever the bus does, a member that asks until nothing is missing ends up with the coordinator's directory.
func TestFeedConverges(t *testing.T) {
	a := newAuthority(t, testCollective)
	trust, now := a.trust(t), time.Now()
	var certs []member
	for i, name := range []string{"alice", "bob", "carol", "dave", "erin"} {
		for age := range 3 {
			// Certificates of one generation get distinct subnets; other generations use other subnets.
			certs = append(certs, a.issue(t, name, terms{
				from:   now.Add(-time.Duration(age*10+i+1) * time.Minute),
				subnet: fmt.Sprintf("10.0.%d.", (i+age)%4) + []string{"0/26", "0/25", "64/26"}[age],
			}))
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		w := &feedWorld{trust: trust, now: now, certs: certs, latest: map[string]*Verified{}}
		w.newStore()
		for range 2 {
			w.members = append(w.members, &listener{d: New(DefaultLimits()), events: map[string]*Verified{}})
		}
		anyone := rapid.Custom(func(rt *rapid.T) *listener { return rapid.SampledFrom(w.members).Draw(rt, "member") })
		rt.Repeat(map[string]func(*rapid.T){
			"publish": func(rt *rapid.T) { w.publish(rt) },
			"remove": func(rt *rapid.T) {
				name := rapid.SampledFrom([]string{"alice", "bob", "carol", "dave", "erin"}).Draw(rt, "name")
				if err := w.journal.Remove(w.journal.Head().Head+1, name, "gone"); err != nil {
					rt.Fatal(err)
				}
				w.followOwn(rt)
			},
			"tell": func(rt *rapid.T) {
				b := overTheBus(rt, w.journal.Answer(Ask{Epoch: w.epoch, After: w.told}))
				w.told = b.Revision
				w.backlog = append(w.backlog, b)
				for i, m := range w.members {
					if rapid.Bool().Draw(rt, fmt.Sprint("reaches ", i)) {
						m.hear(rt, m.d.Apply(b, trust, now))
					}
				}
			},
			"late": func(rt *rapid.T) {
				if len(w.backlog) == 0 {
					rt.Skip("nothing was told")
				}
				m := anyone.Draw(rt, "to")
				m.hear(rt, m.d.Apply(rapid.SampledFrom(w.backlog).Draw(rt, "batch"), trust, now))
			},
			"ask": func(rt *rapid.T) {
				m := anyone.Draw(rt, "who")
				if ask, behind := m.d.Behind(); behind {
					m.hear(rt, m.d.Answer(overTheBus(rt, w.journal.Answer(ask)), trust, now))
				}
			},
			"reconnect": func(rt *rapid.T) { anyone.Draw(rt, "who").d.Doubt() },
			"relist":    func(rt *rapid.T) { anyone.Draw(rt, "who").d.startOver() },
			"restart": func(rt *rapid.T) {
				m := anyone.Draw(rt, "who")
				data, err := m.d.Encode()
				if err != nil {
					rt.Fatal(err)
				}
				at, records, err := decodeFile(data)
				if err != nil {
					rt.Fatal(err)
				}
				before := m.d
				m.d, m.events = New(DefaultLimits()), map[string]*Verified{}
				m.d.restore(t.Context(), at, records, trust, now)
				for name, e := range m.d.entries {
					m.events[name] = e.Verified
					if had := before.entries[name]; had == nil || !had.Signed.Equal(e.Signed) {
						rt.Fatalf("%s is another after a restart", name)
					}
				}
				if len(before.entries) != len(m.d.entries) {
					rt.Fatalf("%d members before the restart, %d after", len(before.entries), len(m.d.entries))
				}
			},
			"new store": func(rt *rapid.T) {
				if rapid.IntRange(0, 9).Draw(rt, "luck") == 0 {
					w.newStore()
				}
			},
			"": func(rt *rapid.T) {
				for _, m := range w.members {
					m.check(rt)
				}
			},
		})
		for _, m := range w.members {
			m.d.Doubt()
			m.catchUp(rt, w)
			m.check(rt)
			w.compare(rt, m.d)
		}
	})
}

// publish has a member send a record that may claim anything, and the coordinator judge it.
func (w *feedWorld) publish(rt *rapid.T) {
	by := w.certs[rapid.IntRange(0, len(w.certs)-1).Draw(rt, "certificate")]
	r := by.record(rapid.Uint64Range(1, 5).Draw(rt, "number"), w.now)
	r.Key = WireGuardKey{rapid.ByteRange(0, 3).Draw(rt, "key")}
	if rapid.Bool().Draw(rt, "without subnet") {
		r.Subnet = netip.Prefix{}
	}
	s, err := Sign(r, by.chain, by.signature)
	if err != nil {
		rt.Fatal(err)
	}
	v, err := w.gate.Judge(s, w.trust, w.now)
	if err != nil {
		return
	}
	// A member's records are in order even if it was removed meanwhile, see NextSequence.
	if last := w.latest[r.Name]; last != nil && !v.supersedes(last) {
		return
	}
	w.latest[r.Name] = v
	if err := w.journal.Put(w.journal.Head().Head+1, r.Name, s); err != nil {
		rt.Fatal(err)
	}
	w.followOwn(rt)
}

// followOwn has the coordinator's copy follow its own journal.
func (w *feedWorld) followOwn(rt *rapid.T) {
	l := &listener{d: w.gate, events: map[string]*Verified{}}
	for v := range w.gate.All() {
		l.events[v.Record.Name] = v
	}
	w.gate.Doubt()
	l.catchUp(rt, w)
	if len(w.gate.Refused())+len(w.gate.waiting) > 0 {
		rt.Fatalf("the coordinator stored what it refuses: %v", w.gate.LastRefusal())
	}
}

// compare: after a new store, members may know more than it does, and newer things.
func (w *feedWorld) compare(rt *rapid.T, d *Directory) {
	for v := range w.gate.All() {
		have, ok := d.Get(v.Record.Name)
		switch {
		case w.epochs > 1 && (ok && !v.supersedes(have) || d.waiting[v.Record.Name] != nil):
		case !ok || !have.Signed.Equal(v.Signed):
			rt.Fatalf("%s is missing, or another: %v", v.Record.Name, d.LastRefusal())
		}
	}
	if w.epochs == 1 && d.Len() != w.gate.Len() {
		rt.Fatalf("%d members, the coordinator has %d", d.Len(), w.gate.Len())
	}
}
