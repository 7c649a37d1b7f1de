package waypoint

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/flows"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// fakeFast is a fast path and conntrack's entries. It records the calls, in order.
type fakeFast struct {
	mu       sync.Mutex
	calls    []string
	flows    map[forward.Flow]forward.State
	entry    netstate.Flow
	adding   error // returned by Watch and the others
	removes  error
	forwards error
	relaxes  error
	left     map[forward.Tuple]uint64
	lives    int // number of looks after which all connections have ended; 0: they stay
}

func (f *fakeFast) kernel() fastKernel {
	if f == nil {
		return fastKernel{}
	}
	return fastKernel{fast: f, entries: f, timeouts: flowTimeouts{established: time.Hour, shortest: 40 * time.Second}}
}

func (f *fakeFast) note(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

// took returns the calls since the last time.
func (f *fakeFast) took() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return strings.Join(calls, ", ")
}

func (f *fakeFast) change(how func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how()
}

func (f *fakeFast) Attach([]int) error { return nil }

func (f *fakeFast) Left() map[forward.Tuple]uint64 { return f.left }

func (f *fakeFast) Watch(flow forward.Flow, passed forward.Passed) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("watch")
	if f.adding == nil {
		f.flows[flow] = forward.State{Passed: passed}
	}
	return f.adding
}

func (f *fakeFast) Forward(forward.Flow) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("forward")
	return f.forwards
}

// talk simulates packets in both directions. Netfilter counts them if it accepts them as the connection's own.
// Their numbers continue the earlier ones unless restarted.
func (f *fakeFast) talk(flow netstate.Flow, anew, counts bool) {
	f.change(func() {
		state := f.flows[flows.Key(flow)]
		for _, n := range []*forward.Numbers{&state.Seen.Origin, &state.Seen.Reply} {
			n.Next += 100
			if anew || n.Begun == 0 {
				n.Begun++
			}
		}
		f.flows[flows.Key(flow)] = state
		if counts {
			f.entry.BytesOrigin += 140
			f.entry.BytesReply += 140
		}
	})
}

func (f *fakeFast) Remove(flow forward.Flow) (forward.Passed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("remove")
	if f.removes != nil {
		return forward.Passed{}, f.removes
	}
	passed := f.flows[flow].Passed
	delete(f.flows, flow)
	return passed, nil
}

func (f *fakeFast) Look(flow forward.Flow) (forward.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state := f.flows[flow]
	if f.lives--; f.lives == 0 {
		for each, s := range f.flows {
			s.Ended = true
			f.flows[each] = s
		}
	}
	f.lives = max(f.lives, 0)
	return state, nil
}

func (f *fakeFast) Relax(_ netstate.Tuple, timeout time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("relax %v", timeout)
	return f.relaxes
}

func (f *fakeFast) Flow(netstate.Tuple) (netstate.Flow, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("ask")
	return f.entry, true, nil
}

func (f *fakeFast) carry(flow netstate.Flow, passed forward.Passed, ended bool) {
	f.change(func() {
		state := f.flows[flows.Key(flow)]
		state.Passed, state.Ended = passed, ended
		f.flows[flows.Key(flow)] = state
	})
}

func runFast(t *testing.T, f func(t *testing.T, h *fakeHost)) {
	run(t, func(t *testing.T, h *fakeHost) {
		h.fast = &fakeFast{flows: make(map[forward.Flow]forward.State), entry: netstate.Flow{Established: true}}
		f(t, h)
	})
}

// establish reports a new connection of alice, who is member 1, by a kind of detour.
func (h *fakeHost) establish(t *testing.T, w *Waypoint, kind wire.Kind) netstate.Flow {
	t.Helper()
	mustMap(t, w, aliceAt, serverNumber(1), 443)
	f := netstate.Flow{
		Origin: netstate.Tuple{Src: netip.AddrPortFrom(aliceAt.Addr, 40000), Dst: netip.AddrPortFrom(ownAddr, 443)},
		Reply:  netstate.Tuple{Src: serverNumber(1), Dst: netip.AddrPortFrom(ownAddr, 61000)},
		Mark:   rules.DefaultMarks.Mark(1, kind),
	}
	h.events <- flowNews{events: []netstate.FlowEvent{{Flow: f}}}
	f.Established = true
	h.events <- flowNews{events: []netstate.FlowEvent{{Flow: f}}}
	synctest.Wait()
	return f
}

// hasten has a connection talk until it is on the fast path.
func (h *fakeHost) hasten(f netstate.Flow) {
	for range 2 {
		h.fast.talk(f, false, true)
		time.Sleep(flows.WatchEvery)
		synctest.Wait()
	}
}

func (h *fakeHost) end(f netstate.Flow) {
	h.events <- flowNews{events: []netstate.FlowEvent{{Flow: f, Closed: true}}}
	synctest.Wait()
}

const (
	watching = "watch, ask"
	entering = watching + ", ask, relax 0s, forward, relax 0s, ask"
)

// Which connections enter the fast path, and the kernel calls for it, in order.
func TestEntersFastPath(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   wire.Kind
		change func(*fakeFast)
		want   string
		fast   int
	}{
		{"mapped", wire.Mapped, nil, entering, 1},
		{"in-band", wire.InBand, nil, entering, 1},
		{"a tunnel", wire.WireGuard, nil, "", 0},
		{"closing already", wire.Mapped, func(f *fakeFast) { f.entry.Established = false }, watching + ", remove", 0},
		{"with a helper", wire.Mapped, func(f *fakeFast) { f.entry.Helped = true }, watching + ", remove", 0},
		{"full", wire.Mapped, func(f *fakeFast) { f.adding = forward.ErrFull }, "watch", 0},
		{"does not go", wire.Mapped, func(f *fakeFast) { f.forwards = errors.New("broken") }, watching + ", ask, relax 0s, forward, remove", 0},
		{"gone already", wire.Mapped, func(f *fakeFast) { f.relaxes = unix.ENOENT }, watching + ", ask, relax 0s, remove", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			runFast(t, func(t *testing.T, h *fakeHost) {
				if c.change != nil {
					c.change(h.fast)
				}
				w := h.start(t)
				defer mustClose(t, w)
				f := h.establish(t, w, c.kind)
				h.hasten(f)
				if c.fast > 0 {
					h.events <- flowNews{events: []netstate.FlowEvent{{Flow: f}}} // our own change is reported too
					synctest.Wait()
				}
				if got := h.fast.took(); got != c.want {
					t.Errorf("asked %q, want %q", got, c.want)
				}
				s, err := w.Snapshot()
				if err != nil || *s.Fast != c.fast || s.Members[0].Flows != 1 {
					t.Errorf("snapshot %+v, %v, kernel %+v", s, err, h.fast.flows)
				}
				h.end(f)
				if s, err := w.Snapshot(); err != nil || *s.Fast != 0 || c.fast > 0 && len(h.fast.flows) != 0 {
					t.Errorf("after the end: snapshot %+v, %v, kernel %+v", s, err, h.fast.flows)
				}
			})
		})
	}
}

// A connection is forwarded only once netfilter has counted packets that fit its numbers: before that the numbers
// may be a stranger's, whose packets netfilter drops.
func TestWatchesUntilNumbersAreCertain(t *testing.T) {
	type second struct{ talks, anew, counted bool }
	var (
		idle       = second{}
		own        = second{talks: true, counted: true}
		strangers  = second{talks: true, anew: true}
		followedBy = second{talks: true} // a stranger's that fits his own before
		ownAgain   = second{talks: true, anew: true, counted: true}
	)
	for name, c := range map[string]struct {
		seconds []second
		fast    int
	}{
		"idle":                    {[]second{idle, idle, idle, idle}, 0},
		"its own":                 {[]second{own, own}, 1},
		"its own, late":           {[]second{idle, own, idle, idle, own}, 1},
		"one packet":              {[]second{own, idle, idle, idle}, 0},
		"a stranger's":            {[]second{strangers, followedBy, followedBy, idle, followedBy}, 0},
		"a stranger's, then own":  {[]second{strangers, followedBy, ownAgain}, 0},
		"its own after that":      {[]second{strangers, followedBy, ownAgain, own}, 1},
		"a stranger's in between": {[]second{own, strangers, ownAgain}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			runFast(t, func(t *testing.T, h *fakeHost) {
				w := h.start(t)
				defer mustClose(t, w)
				f := h.establish(t, w, wire.Mapped)
				for _, s := range c.seconds {
					if s.talks {
						h.fast.talk(f, s.anew, s.counted)
					}
					time.Sleep(flows.WatchEvery)
					synctest.Wait()
				}
				if s, err := w.Snapshot(); err != nil || *s.Fast != c.fast {
					t.Errorf("%d on the fast path, want %d, %v", *s.Fast, c.fast, err)
				}
			})
		})
	}
}

// Entries are prolonged while data passes, and no longer; bytes are the sum of both paths.
func TestKeepsEntries(t *testing.T) {
	runFast(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		f := h.establish(t, w, wire.Mapped)
		h.hasten(f)
		h.fast.took()
		const round = 12 * time.Second
		for _, step := range []struct {
			name   string
			passed forward.Passed
			ended  bool
			want   string
		}{
			{"nothing passes", forward.Passed{}, false, ""},
			{"data passes", forward.Passed{Origin: 1000}, false, "relax 1h0m0s"},
			{"no more", forward.Passed{Origin: 1000}, false, ""},
			{"answers", forward.Passed{Origin: 1000, Reply: 50}, false, "relax 1h0m0s"},
			{"the end", forward.Passed{Origin: 2000, Reply: 50}, true, "remove"},
			{"after it", forward.Passed{}, false, ""},
		} {
			if step.passed != (forward.Passed{}) {
				h.fast.carry(f, step.passed, step.ended)
			}
			time.Sleep(round)
			synctest.Wait()
			if got := h.fast.took(); got != step.want {
				t.Errorf("%s: asked %q, want %q", step.name, got, step.want)
			}
		}
		h.setFlows(f)
		if s, err := w.Snapshot(); err != nil || s.Members[0].BytesFromClient != 2000 || s.Members[0].BytesToClient != 50 {
			t.Errorf("snapshot %+v, %v", s, err)
		}
		f.BytesOrigin, f.BytesReply = 100, 10
		h.end(f)
		entries := h.entries(t)
		last := entries[len(entries)-1]
		if last.Event != attribution.FlowClosed || *last.BytesFromClient != 2100 || *last.BytesToClient != 60 {
			t.Errorf("last entry %+v", last)
		}
	})
}

// An entry that is prolonged just when its connection ends does not live on.
func TestEndsWhileKept(t *testing.T) {
	runFast(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		f := h.establish(t, w, wire.Mapped)
		h.hasten(f)
		h.fast.took()
		h.fast.carry(f, forward.Passed{Origin: 1}, false)
		h.fast.change(func() { h.fast.lives = 1 }) // it ends between two looks
		time.Sleep(12 * time.Second)
		synctest.Wait()
		if got, want := h.fast.took(), "relax 1h0m0s, relax 2m0s"; got != want {
			t.Errorf("asked %q, want %q", got, want)
		}
	})
}

// A connection that does not leave the fast path is reported, and does not count as removed.
func TestExpelSaysWhatStays(t *testing.T) {
	runFast(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		h.establish(t, w, wire.Mapped)
		broken := errors.New("broken")
		h.fast.change(func() { h.fast.removes = broken })
		if err := w.Expel("alice"); !errors.Is(err, broken) {
			t.Errorf("expel: %v", err)
		}
		h.fast.change(func() { h.fast.removes = nil })
		if err := w.Expel("alice"); err != nil || len(h.fast.flows) != 0 {
			t.Errorf("expel again: %v, left %+v", err, h.fast.flows)
		}
		if !slices.Contains(h.deleted, rules.DefaultMarks.Of(1)) {
			t.Error("conntrack keeps the connections")
		}
	})
}
