package nat

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/detour-collective/dcol/internal/nat/stun"
)

var open = Found{Mapping: Untranslated, Filtering: PassesAll}

// boxes lists all kinds of NAT that can be distinguished.
func boxes() []Found {
	var all []Found
	for _, m := range []Mapping{Untranslated, Independent, Dependent} {
		for _, f := range []Filtering{PassesAll, PassesAddresses, PassesPorts} {
			if m != Dependent || f == PassesPorts {
				all = append(all, Found{Mapping: m, Filtering: f})
			}
		}
	}
	return all
}

// The conclusion about a box is what the box does.
func TestExamine(t *testing.T) {
	for _, is := range boxes() {
		t.Run(Found.Kind(is), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				h := w.add("203.0.113.1", is)
				one, two, third := w.add("198.51.100.1", open), w.add("198.51.100.2", open), w.add("198.51.100.3", open)
				e := h.Examine(t.Context(), Question{
					Own: []netip.Addr{h.inner.Addr()}, Port: port, Observers: []Observer{{"one", one.at()}, {"one", one.at()}, {"two", two.at()}},
					Third: func(ctx context.Context, _ []netip.Addr, outside netip.AddrPort, id stun.ID) error {
						_, err := third.Knock(ctx, []netip.AddrPort{outside}, id)
						if errors.Is(err, ErrNoAnswer) {
							err = nil
						}
						return err
					},
				})
				if len(e.Sightings) != 2 || e.Asked != 2 {
					t.Errorf("evidence %+v", e)
				}
				got, want := Conclude(e), is
				if is.Mapping != Dependent {
					want.Outside = h.at()
				}
				if got != want {
					t.Errorf("found %+v, is %+v", got, want)
				}
			})
		})
	}
}

// A member to which a packet was sent recently is not a stranger, so its packets prove nothing.
func TestExamineNoStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h, one, third := w.add("203.0.113.1", Found{Mapping: Independent, Filtering: PassesAddresses}), w.add("198.51.100.1", open), w.add("198.51.100.3", open)
		knock := func(ctx context.Context, _ []netip.Addr, outside netip.AddrPort, id stun.ID) error {
			third.Knock(ctx, []netip.AddrPort{outside}, id)
			return nil
		}
		q := Question{Own: []netip.Addr{h.inner.Addr()}, Port: port, Observers: []Observer{{"one", one.at()}}, Third: knock}
		if _, err := h.Ask(t.Context(), third.at()); err != nil {
			t.Fatal(err)
		}
		if e := h.Examine(t.Context(), q); e.FromOtherAddress != NotTried || e.FromOtherPort != Came {
			t.Errorf("%+v", e)
		}
		time.Sleep(2 * strangeAfter)
		clear(h.sends)
		if e := h.Examine(t.Context(), q); e.FromOtherAddress != Missed {
			t.Errorf("later: %+v", e)
		}
	})
}

// Members that do not answer only take time.
func TestExamineSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.add("203.0.113.1", Found{Mapping: Independent, Filtering: PassesPorts})
		dead, one := w.add("198.51.100.1", open), w.add("198.51.100.2", open)
		dead.down = true
		begin := time.Now()
		e := h.Examine(t.Context(), Question{Own: []netip.Addr{h.inner.Addr()}, Port: port, Observers: []Observer{{"dead", dead.at()}, {"one", one.at()}}})
		want := Evidence{
			Own: []netip.Addr{h.inner.Addr()}, Port: port, Asked: 2, Sightings: []Sighting{{Member: "one", By: one.at(), At: h.at()}}, FromOtherPort: Missed,
		}
		if diff := cmp.Diff(want, e, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
			t.Error(diff)
		}
		if took := time.Since(begin); took > 8*time.Second {
			t.Errorf("it took %v", took)
		}
		if f := Conclude(e); f.Kind() != "NAT" || f.Leaves() != LeavesOpen {
			t.Errorf("one member tells %v, which leaves %v", f.Kind(), f.Leaves())
		}
	})
}

// Cancelling an examination ends it at once.
func TestExamineCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h, dead := w.add("203.0.113.1", open), w.add("198.51.100.1", open)
		dead.down = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		h.Examine(ctx, Question{Observers: []Observer{{"dead", dead.at()}, {"gone", netip.MustParseAddrPort("198.51.100.9:1")}}})
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// Each member is asked at one of its addresses, and members are asked until two agree. Nobody agrees with a liar.
func TestExamineAsksUntilTwoAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.add("203.0.113.1", Found{Mapping: Independent, Filtering: PassesPorts})
		liar, again, one, two, three := w.add("198.51.100.1", open), w.add("198.51.100.2", open), w.add("192.0.2.1", open), w.add("192.0.2.2", open), w.add("192.88.1.1", open)
		// They claim to see others at a false address.
		liar.lies, again.lies = netip.MustParseAddr("9.9.9.9"), netip.MustParseAddr("9.9.9.9")
		e := h.Examine(t.Context(), Question{Own: []netip.Addr{h.inner.Addr()}, Port: port, Observers: []Observer{
			{"liar", liar.at()}, {"liar", again.at()}, {"one", one.at()}, {"two", two.at()}, {"three", three.at()},
		}})
		var told []string
		for _, s := range e.Sightings {
			told = append(told, s.Member+" "+s.At.Addr().String())
		}
		// "two" is in the network of "one", and would be asked after "three".
		if diff := cmp.Diff([]string{"liar 9.9.9.9", "one 203.0.113.1", "three 203.0.113.1"}, told); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// A result holds as long as no member that answers sees another address, whoever is asked first.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.add("203.0.113.1", Found{Mapping: Dependent, Filtering: PassesPorts})
		one, two := w.add("198.51.100.1", open), w.add("192.0.2.1", open)
		e := h.Examine(t.Context(), Question{Own: []netip.Addr{h.inner.Addr()}, Port: port, Observers: []Observer{{"one", one.at()}, {"two", two.at()}}})
		f := Conclude(e)
		clear(h.maps) // the NAT forgets its mappings, and assigns other ports
		if now := h.Again(t.Context(), e.Sightings); len(now) != 2 || !f.Holds(e.Sightings, now) {
			t.Errorf("with other ports: %+v", now)
		}
		one.lies, two.lies = h.outside, netip.MustParseAddr("203.0.113.2")
		if now := h.Again(t.Context(), e.Sightings); f.Holds(e.Sightings, now) {
			t.Errorf("at another address, which the first keeps back: %+v", now)
		}
		one.down, two.down = true, true
		if now := h.Again(t.Context(), e.Sightings); len(now) != 0 || f.Holds(e.Sightings, now) {
			t.Errorf("nobody answers: %+v", now)
		}
	})
}
