package waypoint

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

func runInBand(t *testing.T, mode InBandMode, f func(t *testing.T, h *fakeHost, w *Waypoint)) {
	t.Helper()
	run(t, func(t *testing.T, h *fakeHost) {
		h.config.InBand = mode
		w := h.start(t)
		defer mustClose(t, w)
		f(t, h, w)
	})
}

// admitted lists whom the kernel's table admits to a kind.
func (h *fakeHost) admitted(t testing.TB, kind wire.Kind) []rules.Admission {
	t.Helper()
	state, _, err := h.table.Load()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(state.Admissions, func(a rules.Admission) bool { return a.Kind != kind })
}

func TestInBandLease(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			runInBand(t, mode, func(t *testing.T, h *fakeHost, w *Waypoint) {
				alice := overSession("alice", aliceAt.Addr, 1)
				w.SessionUp(alice)
				mustInBand(t, w, alice)
				time.Sleep(9 * time.Minute)
				mustInBand(t, w, alice)
				time.Sleep(2 * time.Minute)
				if list := h.admitted(t, wire.InBand); len(list) != 1 || list[0].Left != 8*time.Minute {
					t.Errorf("renewed: %+v", list)
				}
				if slots := h.slots(alice.Addr); mode == InBandAuthenticated && len(slots) != 1 {
					t.Errorf("the first key should be over: %+v", slots)
				}
				time.Sleep(8*time.Minute + 2*lease.ExpiryGrace)
				if list, slots := h.admitted(t, wire.InBand), h.slots(alice.Addr); len(list)+len(slots) > 0 {
					t.Errorf("expired: %+v, %+v", list, slots)
				}
				synctest.Wait()
				var events []attribution.Event
				for _, e := range h.entries(t) {
					events = append(events, e.Event)
				}
				if !slices.Equal(events, []attribution.Event{attribution.AdmissionGranted, attribution.AdmissionEnded}) {
					t.Errorf("recorded %v", events)
				}
			})
		})
	}
}

func TestInBandRefusals(t *testing.T) {
	runInBand(t, InBandAuthenticated, func(t *testing.T, h *fakeHost, w *Waypoint) {
		alice := overSession("alice", aliceAt.Addr, 1)
		if r := inBandRefusal(t, w, alice); r.Code != wire.Busy || r.RetryAfter == 0 {
			t.Errorf("without a session: %v", r)
		}
		six := overSession("alice", netip.MustParseAddr("2a00::1"), 2)
		w.SessionUp(six)
		if r := inBandRefusal(t, w, six); r.Code != wire.FamilyMismatch {
			t.Errorf("over IPv6: %v", r)
		}
		mapped := overSession("alice", netip.MustParseAddr("::ffff:9.0.0.1"), 3)
		w.SessionUp(mapped)
		if g, r := w.InBand(t.Context(), mapped, wire.TunnelRequest{Local: aliceAt.Addr}); r != nil || g.Client != aliceAt.Addr || !g.ClientPort {
			t.Errorf("over IPv4 by an IPv6 socket: %+v, %v", g, r)
		}
		if s, err := w.Snapshot(); err != nil || s.Refused[wire.Busy] != 1 || s.Refused[wire.FamilyMismatch] != 1 {
			t.Errorf("snapshot %+v, %v", s, err)
		}
	})
	runInBand(t, InBandOff, func(t *testing.T, _ *fakeHost, w *Waypoint) {
		alice := overSession("alice", aliceAt.Addr, 1)
		w.SessionUp(alice)
		if r := inBandRefusal(t, w, alice); r.Code != wire.NotOffered {
			t.Errorf("switched off: %v", r)
		}
	})
}

// Where two members behind one address cannot be distinguished, the first one has it.
func TestOpenInBandIsOneMembers(t *testing.T) {
	runInBand(t, InBandOpen, func(t *testing.T, h *fakeHost, w *Waypoint) {
		alice, bob := overSession("alice", aliceAt.Addr, 1), overSession("bob", aliceAt.Addr, 2)
		w.SessionUp(alice)
		w.SessionUp(bob)
		mustInBand(t, w, alice)
		if r := inBandRefusal(t, w, bob); r.Code != wire.Busy || !strings.Contains(r.Message, "another member") {
			t.Errorf("bob: %v", r)
		}
		w.SessionDown(alice)
		mustInBand(t, w, bob)
		if list := h.admitted(t, wire.InBand); len(list) != 1 || list[0].Member != 2 {
			t.Errorf("admitted: %+v", list)
		}
	})
}

// Several members share an address. The first that comes back after a restart does not end the others' keys.
func TestKeysOfOthersStayWhenOneComesBack(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		h.config.InBand = InBandAuthenticated
		w := h.start(t)
		alice, bob := overSession("alice", aliceAt.Addr, 1), overSession("bob", aliceAt.Addr, 2)
		w.SessionUp(alice)
		w.SessionUp(bob)
		mustInBand(t, w, alice)
		bobs := inband.Key(mustInBand(t, w, bob).Key)
		mustClose(t, w)
		w = h.start(t)
		defer func() { mustClose(t, w) }()
		w.SessionUp(alice)
		mustInBand(t, w, alice)
		has := func() bool {
			return slices.ContainsFunc(h.slots(aliceAt.Addr), func(s inband.Slot) bool { return s.Key == bobs })
		}
		if !has() {
			t.Errorf("bob's key is gone: %+v", h.slots(aliceAt.Addr))
		}
		time.Sleep(lease.AdoptedGrace + 2*lease.ExpiryGrace)
		if has() {
			t.Error("bob's key stays, though he did not come back")
		}
	})
}

func TestAsManyKeysAsThereIsRoomFor(t *testing.T) {
	runInBand(t, InBandAuthenticated, func(t *testing.T, h *fakeHost, w *Waypoint) {
		for i := range inband.MaxSlots {
			p := overSession(fmt.Sprintf("member%d", i), aliceAt.Addr, uint64(i+1))
			w.SessionUp(p)
			mustInBand(t, w, p)
		}
		late := overSession("late", aliceAt.Addr, 99)
		w.SessionUp(late)
		if r := inBandRefusal(t, w, late); r.Code != wire.Busy || r.RetryAfter == 0 {
			t.Errorf("one too many: %v", r)
		}
		w.SessionDown(overSession("member3", aliceAt.Addr, 4))
		mustInBand(t, w, late)
		if n := len(h.slots(aliceAt.Addr)); n != inband.MaxSlots {
			t.Errorf("%d keys", n)
		}
	})
}

// What the kernel refuses is not granted, and what it fails to remove is removed later.
func TestInBandFaults(t *testing.T) {
	runInBand(t, InBandAuthenticated, func(t *testing.T, h *fakeHost, w *Waypoint) {
		alice, bob := overSession("alice", aliceAt.Addr, 1), overSession("bob", bobAt.Addr, 2)
		w.SessionUp(alice)
		w.SessionUp(bob)
		mustInBand(t, w, alice)
		for what, fail := range map[string]func(error){"the table": h.table.Fail, "the keys": h.failKeys} {
			fail(unix.ENOMEM)
			if r := inBandRefusal(t, w, bob); r.Code != wire.Internal || r.RetryAfter == 0 {
				t.Errorf("%s: refused by %v", what, r)
			}
			if s, err := w.Snapshot(); err != nil || s.InBand != 1 || len(s.Problems) != 1 || s.Problems[0].Fix == "" {
				t.Errorf("%s: snapshot %+v, %v", what, s, err)
			}
			if err := w.Expel("alice"); err == nil {
				t.Errorf("%s: expelled though it fails", what)
			}
			fail(nil)
			time.Sleep(2 * tableCheck)
			if list, slots := h.admitted(t, wire.InBand), h.slots(alice.Addr); len(list)+len(slots) > 0 {
				t.Errorf("%s: left of alice: %+v, %+v", what, list, slots)
			}
			if s, err := w.Snapshot(); err != nil || len(s.Problems) > 0 {
				t.Errorf("%s: problems stay: %+v, %v", what, s.Problems, err)
			}
			mustInBand(t, w, alice)
		}
		h.table.Flush()
		mustInBand(t, w, bob)
		if list := h.admitted(t, wire.InBand); len(list) != 2 {
			t.Errorf("after a flush: %+v", list)
		}
	})
}

// An agent that was killed leaves admissions behind; members that do not come back lose them soon.
func TestInBandIsAdopted(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, h *fakeHost) {
				h.config.InBand = mode
				w := h.start(t)
				alice, bob := overSession("alice", aliceAt.Addr, 1), overSession("bob", bobAt.Addr, 2)
				w.SessionUp(alice)
				w.SessionUp(bob)
				mustInBand(t, w, alice)
				mustInBand(t, w, bob)
				mustClose(t, w)
				commits := h.table.Commits()
				w = h.start(t)
				defer func() { mustClose(t, w) }()
				if n := h.table.Commits(); n != commits {
					t.Error("adopting changed the table")
				}
				if mode == InBandAuthenticated && len(h.slots(alice.Addr))+len(h.slots(bob.Addr)) != 2 {
					t.Error("keys are lost")
				}
				w.SessionUp(alice)
				mustInBand(t, w, alice)
				time.Sleep(lease.AdoptedGrace + 2*lease.ExpiryGrace)
				list := h.admitted(t, wire.InBand)
				if len(list) != 1 || list[0].Addr != alice.Addr || len(h.slots(bob.Addr)) > 0 {
					t.Errorf("admitted %+v, bob's keys %+v", list, h.slots(bob.Addr))
				}
			})
		})
	}
}

func TestFiltersAreAttached(t *testing.T) {
	runInBand(t, InBandAuthenticated, func(t *testing.T, h *fakeHost, w *Waypoint) {
		h.setInterfaces(netstate.Interface{Index: 1, Name: "lo", Loopback: true}, netstate.Interface{Index: 2, Name: "eth0"},
			netstate.Interface{Index: 3, Name: "dcolwg"})
		if err := w.SetTunnelInterfaces([]string{"dcolwg"}); err != nil {
			t.Fatal(err)
		}
		if got := h.attachedTo(); !slices.Equal(got, []int{2}) {
			t.Errorf("attached to %v", got)
		}
		h.setInterfaces(netstate.Interface{Index: 2, Name: "eth0"}, netstate.Interface{Index: 4, Name: "eth1"})
		time.Sleep(attachEvery + tableCheck)
		if got := h.attachedTo(); !slices.Equal(got, []int{2, 4}) {
			t.Errorf("attached to %v", got)
		}
		problems := func() []Problem {
			s, err := w.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			return s.Problems
		}
		h.failAttach(errors.Join(&inband.InterfaceError{Name: "gre0", Err: errors.New("unfit")}))
		time.Sleep(attachEvery + tableCheck)
		if p := problems(); len(p) > 0 {
			t.Errorf("an unfit interface: %+v", p)
		}
		h.failAttach(unix.EPERM)
		time.Sleep(attachEvery + tableCheck)
		if p := problems(); len(p) != 1 || p[0].Code != "in-band-filters" || p[0].Fix == "" {
			t.Errorf("not permitted: %+v", p)
		}
		h.failAttach(nil)
		time.Sleep(tableCheck)
		if p := problems(); len(p) > 0 {
			t.Errorf("problems stay: %+v", p)
		}
	})
}
