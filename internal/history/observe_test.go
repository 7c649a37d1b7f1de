package history

import (
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// scene is an agent with one connection. Packets wait in a queue of the direct path.
type scene struct {
	t      *testing.T
	o      Observer
	now    time.Time
	status api.Status
	// bytes that the agent has counted
	direct, detour uint64
}

func newScene(t *testing.T, traffic string) *scene { return newSceneAt(t, traffic, noon) }

func newSceneAt(t *testing.T, traffic string, now time.Time) *scene {
	at := func(port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), port)
	}
	s := &scene{t: t, now: now, status: api.Status{Since: now, Client: &api.Using{Connections: []api.Connection{{
		Token: "1", Since: now.Add(time.Millisecond), Traffic: traffic, Subflows: []api.Subflow{
			{Kind: "direct", State: api.SubflowUp, Local: at(1), RTT: 20, MinRTT: 20, ReceiverRTT: 60},
			{Kind: "mapped", Waypoint: "bob", State: api.SubflowUp, Local: at(2), RTT: 40, MinRTT: 40, ReceiverRTT: 45},
		}}}}}}
	s.o.Observe(&api.Status{Since: now, Client: &api.Using{}}, now)
	return s
}

// queues sets the milliseconds for which packets wait on the direct path and on the detour.
func (s *scene) queues(direct, detour float64) {
	subs := s.status.Client.Connections[0].Subflows
	subs[0].ReceiverRTT, subs[1].ReceiverRTT = subs[0].MinRTT+direct, subs[1].MinRTT+detour
}

// take returns what was observed, including transfers that continue.
func (s *scene) take() api.Period {
	s.o.Settle()
	return sum(s.o.Take())
}

// sum adds up periods.
func sum(list []api.Period) (all api.Period) {
	for i := range list {
		merge(&all, &list[i])
	}
	return all
}

// end ends the connection, after seconds after the last state.
func (s *scene) end(after float64) {
	u := s.status.Client
	u.Ended = []api.Ended{{Token: "2", At: s.now}, {Token: "1", At: s.now.Add(time.Duration(after * float64(time.Second)))}}
	u.Connections = nil
	s.now = s.now.Add(observeEvery)
	s.o.Observe(&s.status, s.now)
}

// run makes the paths carry data at the given rates in bytes a second, for count observations of three seconds.
func (s *scene) run(count int, direct, detour uint64) {
	for range count {
		s.now = s.now.Add(observeEvery)
		subs := s.status.Client.Connections[0].Subflows
		subs[0].BytesReceived += 3 * direct
		subs[1].BytesReceived += 3 * detour
		s.direct += 3 * direct
		if subs[1].Kind != unknownKind {
			s.detour += 3 * detour
		}
		s.status.Client.Counters.Carried = []api.Carried{{Kind: "direct", Received: s.direct}, {Kind: "mapped", Waypoint: "bob", Received: s.detour}}
		s.o.Observe(&s.status, s.now)
	}
}

func (s *scene) want(what string, is, want, tolerance float64) {
	s.t.Helper()
	if math.Abs(is-want) > tolerance {
		s.t.Errorf("%s is %v, want %v", what, is, want)
	}
}

// Each minute has what was carried and gained in it, although observations extend over its borders, and although a gain
// may only be known in a later minute.
func TestMinutesHaveTheirOwnData(t *testing.T) {
	s := newSceneAt(t, api.TrafficBulk, noon.Add(2*time.Second))
	s.queues(60, 60)
	s.run(19, 1e6, 1e6) // until 12:00:59
	s.run(20, 2e6, 3e6) // until 12:01:59
	s.run(19, 1e6, 0)   // until 12:02:56
	s.o.Settle()
	list := s.o.Take()
	if len(list) != 3 {
		t.Fatalf("%d minutes: %+v", len(list), list)
	}
	for i, want := range []struct{ observed, direct, detour, saved float64 }{
		{58, 57e6 + 2e6, 57e6 + 3e6, 57 + 1.5}, {60, 118e6 + 1e6, 59 * 3e6, 59 * 1.5}, {56, 56e6, 0, 0},
	} {
		p := &list[i]
		if !p.Start.Equal(noon.Add(time.Duration(i) * time.Minute)) {
			t.Errorf("minute %d begins at %v", i, p.Start)
		}
		carried := map[string]float64{}
		for _, u := range p.Paths {
			carried[u.Kind] = float64(u.Received)
			if u.Samples < 18 || u.Samples > 20 {
				t.Errorf("minute %d: %d samples of %s", i, u.Samples, u.Kind)
			}
		}
		s.want("observed seconds", p.Observed, want.observed, 0.001)
		s.want("bytes of the direct path", carried["direct"], want.direct, 2)
		s.want("bytes of the detour", carried["mapped"], want.detour, 2)
		s.want("time saved", p.Gained.Saved, want.saved, 2)
	}
}

// A round trip counts in the seconds in which it was measured, and not for ever after.
func TestOldRoundTripsDoNotCount(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(2, 1e6, 1e6)
	s.status.Client.Connections[0].Subflows[1].RTTAge = 60
	s.run(8, 1e6, 0)
	for _, u := range s.take().Paths {
		if want := map[string]uint64{"direct": 10, "mapped": 2}[u.Kind]; u.Samples != want {
			t.Errorf("%d round trips of %s, want %d", u.Samples, u.Kind, want)
		}
	}
}

// If two equal paths share nothing, the direct one alone would have taken twice as long.
func TestTimeSaved(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(5, 1e6, 0)
	s.run(10, 1e6, 1e6)
	p := s.take()
	s.want("time saved", p.Gained.Saved, 30, 1)
	if g := p.Gained; g.SavedLow > 30 || g.SavedHigh < 30 || g.SavedLow < 20 {
		t.Errorf("the bounds are %v and %v", g.SavedLow, g.SavedHigh)
	}
	s.want("bytes over detours", float64(p.Gained.DetourBytes), 30e6, 1)
	s.want("observed seconds", p.Observed, 45, 0.01)
	if len(p.Paths) != 2 || p.Paths[0].RTT != 20 && p.Paths[1].RTT != 20 {
		t.Errorf("paths are %+v", p.Paths)
	}
	if again := s.take(); len(again.Paths) > 0 {
		t.Errorf("taken twice: %+v", again)
	}
}

// Of two transfers at once, each second counts once, however fast they are.
func TestTimeSavedByTransfersAtOnce(t *testing.T) {
	for _, other := range []uint64{1e6, 1e5, 1e7} {
		s := newScene(t, api.TrafficBulk)
		second := s.status.Client.Connections[0]
		second.Token, second.Subflows = "2", slices.Clone(second.Subflows)
		for i := range second.Subflows {
			second.Subflows[i].Local = netip.AddrPortFrom(second.Subflows[i].Local.Addr(), uint16(3+i))
		}
		s.status.Client.Connections = append(s.status.Client.Connections, second)
		for range 10 {
			second.Subflows[0].BytesReceived += 3 * other
			second.Subflows[1].BytesReceived += 3 * other
			s.run(1, 1e6, 1e6)
		}
		g := s.take().Gained
		s.want("time saved", g.Saved, 30, 0.01)
		s.want("at least", g.SavedLow, 30-60*spread/(1+spread), 0.1)
		s.want("at most", g.SavedHigh, 30+60*spread/(1-spread), 0.1)
	}
}

// A rate that the direct path carried while other transfers used detours, or while other numbers of them ran, does not
// show what it would carry alone for all of them. Only the bounds are counted, and the true gain of 30 s is within them.
func TestTransfersThatShareTheDirectPath(t *testing.T) {
	for _, c := range []struct {
		name string
		// what the two other transfers carry each while the first one uses the direct path only
		direct, detour uint64
	}{{"the others use detours", 1e6, 1e5}, {"the others have not begun", 0, 0}} {
		s := newScene(t, api.TrafficBulk)
		s.queues(60, 60)
		conns := &s.status.Client.Connections
		for _, token := range []string{"2", "3"} {
			more := (*conns)[0]
			more.Token, more.Subflows = token, slices.Clone(more.Subflows)
			for i := range more.Subflows {
				more.Subflows[i].Local = netip.AddrPortFrom(more.Subflows[i].Local.Addr(), uint16(2*len(*conns)+1+i))
			}
			*conns = append(*conns, more)
		}
		run := func(count int, first, firstDetour, direct, detour uint64) {
			for range count {
				for _, c := range (*conns)[1:] {
					c.Subflows[0].BytesReceived += 3 * direct
					c.Subflows[1].BytesReceived += 3 * detour
				}
				s.run(1, first, firstDetour)
			}
		}
		run(2, 3e6, 0, c.direct, c.detour)
		run(10, 1e6, 1e6, 1e6, 1e6)
		if g := s.take().Gained; g.Saved != 0 && math.Abs(g.Saved-30) > 4.5 || g.SavedHigh < 30 || g.SavedLow > 30 || g.Saved == 0 && g.SavedUnknown < 30 {
			t.Errorf("%s: saved %+v", c.name, g)
		}
	}
}

// Of two downloads, one has a detour and a small part of the direct path. Without detours they would divide the direct path
// anew if it is the same: 24 MB of 33 MB come over it in 3 s, so 30 s would be 41.25 s. If the servers differ, their direct
// paths may also be different ones. Then there are only bounds, and both cases are within them.
func TestTransfersWithUnequalShares(t *testing.T) {
	const shared, separate = 11.25, 90.0 * 4 / 11
	for _, c := range []struct {
		name         string
		alone, other bool // both were measured without detours before; the other server is another one
		queues       bool // the direct path has a queue of its own
	}{
		{name: "one server, a queue", queues: true}, {name: "one server, carried alone", alone: true}, {name: "one server, nothing is known"},
		{name: "two servers", alone: true, queues: true, other: true},
	} {
		s := newScene(t, api.TrafficBulk)
		s.queues(60, 60)
		if c.queues {
			s.queues(60, 20)
		}
		conns := &s.status.Client.Connections
		second := (*conns)[0]
		second.Token, second.Subflows = "2", slices.Clone(second.Subflows)
		for i := range second.Subflows {
			second.Subflows[i].Local = netip.AddrPortFrom(second.Subflows[i].Local.Addr(), uint16(3+i))
		}
		if c.other {
			second.Remote = netip.MustParseAddrPort("203.0.113.1:443")
		}
		*conns = append(*conns, second)
		if c.alone {
			for range 4 {
				second.Subflows[0].BytesReceived += 3 * 4e6
				s.run(1, 4e6, 0)
			}
		}
		for range 10 {
			second.Subflows[0].BytesReceived += 3 * 7e6
			s.run(1, 1e6, 3e6)
		}
		g := s.take().Gained
		switch estimate := (c.alone || c.queues) && !c.other; {
		case estimate && (math.Abs(g.Saved-shared) > 0.01 || g.SavedUnknown != 0):
			t.Errorf("%s: saved %v s, want %v: %+v", c.name, g.Saved, shared, g)
		case !estimate && (g.Saved != 0 || g.SavedUnknown != g.SavedHigh || g.SavedHigh < separate && c.other):
			t.Errorf("%s: saved %+v, want bounds", c.name, g)
		case g.SavedLow > shared || g.SavedHigh < shared:
			t.Errorf("%s: %v is not within the bounds of %+v", c.name, shared, g)
		}
	}
}

// If the direct path of one of two transfers carries nothing, that is a stall, although the other's does.
func TestStallOfOneTransfer(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	conns := &s.status.Client.Connections
	second := (*conns)[0]
	second.Token, second.Subflows = "2", slices.Clone(second.Subflows)
	for i := range second.Subflows {
		second.Subflows[i].Local = netip.AddrPortFrom(second.Subflows[i].Local.Addr(), uint16(3+i))
	}
	*conns = append(*conns, second)
	run := func(count int, direct, detour uint64) {
		for range count {
			second.Subflows[0].BytesReceived += 3e6
			second.Subflows[1].BytesReceived += 3e6
			s.run(1, direct, detour)
		}
	}
	run(4, 1e6, 1e6)
	run(3, 0, 1e6)
	run(2, 1e6, 1e6)
	run(2, 0, 1e6)
	g := s.take().Gained
	s.want("stalls", float64(g.Stalls), 2, 0)
	s.want("time of stalls", g.StallTime, 15, 0.01)
}

// What transfers that continue have gained so far can be asked for at any time, and is not counted twice.
func TestOpenTransfers(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.queues(60, 60)
	s.run(3, 1e6, 1e6)
	for range 2 {
		if g := sum(s.o.Open()).Gained; g.Saved != 0 || g.SavedUnknown < 9 || g.SavedUnknown != g.SavedHigh {
			t.Errorf("open transfers saved %+v", g)
		}
	}
	s.queues(60, 20)
	s.run(12, 1e6, 1e6)
	s.want("time saved in 45 s", sum(s.o.Take()).Gained.Saved+sum(s.o.Open()).Gained.Saved, 45, 0.01)
	s.take()
	if open := s.o.Open(); len(open) > 0 {
		t.Errorf("after all was counted, open transfers saved %+v", open)
	}
}

// A transfer that ends before the kind of its traffic is known may have saved something.
func TestTransferThatEndsEarly(t *testing.T) {
	s := newScene(t, api.TrafficShort)
	s.run(1, 1e6, 1e6)
	s.end(1)
	if g := s.take().Gained; g.Saved != 0 || g.SavedLow != 0 || g.SavedHigh < 4 || g.SavedUnknown != g.SavedHigh {
		t.Errorf("saved %+v", g)
	}
}

// Two paths that share a bottleneck save nothing, because the direct one carried as much alone.
func TestSharedBottleneckSavesNothing(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(5, 2e6, 0)
	s.run(10, 1e6, 1e6)
	s.want("time saved", s.take().Gained.Saved, 0, 0.01)
}

// The same holds if the direct path carries alone only later, when the detours were found to add nothing.
func TestSharedBottleneckIsFoundOut(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.queues(60, 60)
	s.run(20, 1e6, 1e6)
	if g := sum(s.o.Take()).Gained; g != (api.Gained{DetourBytes: 60e6}) {
		t.Errorf("while nothing is known, saved %+v", g)
	}
	s.run(5, 2e6, 0)
	if g := s.take().Gained; g.Saved > 0.01 || g.SavedLow > 0.01 || g.SavedHigh > 12 || g.SavedUnknown != 0 {
		t.Errorf("saved %+v", g)
	}
}

// If it is not known what the direct path would carry alone, only the bounds are counted: the paths may share a queue,
// or each detour may have another queue as well. If the direct path has no queue that could be shared, there is an
// estimate without a lower bound. If its queue is longer than those of the detours, there is a lower bound as well.
func TestQueues(t *testing.T) {
	for _, c := range []struct {
		name           string
		direct, detour float64
		known, bounded bool
	}{
		{"equal", 60, 60, false, false}, {"the detour's is longer", 60, 200, false, false}, {"the direct path's is a bit longer", 60, 40, false, false},
		{"the direct path has none", 2, 80, true, false}, {"neither has", 2, 2, true, false}, {"the direct path's is longer", 60, 20, true, true},
	} {
		s := newScene(t, api.TrafficBulk)
		s.queues(c.direct, c.detour)
		s.run(10, 1e6, 1e6)
		g := s.take().Gained
		if g.SavedHigh < 30 || g.Saved > 25 != c.known || g.Saved > 0 != c.known || g.SavedLow > 0 != c.bounded || g.SavedUnknown > 0 == c.known {
			t.Errorf("%s: saved %+v", c.name, g)
		}
	}
}

// Nothing is known either if a subflow has not measured its round trip, or joined when there may already have been a
// queue.
func TestNoQueueIsSeen(t *testing.T) {
	for name, spoil := range map[string]func(*api.Connection){
		"not measured": func(c *api.Connection) { c.Subflows[1].ReceiverRTT = 0 },
		"pauses":       func(c *api.Connection) { c.Subflows[0].Heard = 15 },
		"joined late":  func(c *api.Connection) { c.Subflows[1].Since = c.Since.Add(5 * time.Second) },
	} {
		s := newScene(t, api.TrafficBulk)
		spoil(&s.status.Client.Connections[0])
		s.run(10, 1e6, 1e6)
		if g := s.take().Gained; g.Saved != 0 || g.SavedLow != 0 || g.SavedUnknown < 30 || g.SavedUnknown != g.SavedHigh {
			t.Errorf("%s: saved %+v", name, g)
		}
	}
}

// Stretches whose gain is not known for minutes are counted before the transfer ends.
func TestLongTransferOfWhichLittleIsKnown(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.queues(60, 60)
	s.run(200, 1e6, 1e6)
	half := sum(s.o.Take()).Gained.SavedUnknown
	if all := half + s.take().Gained.SavedUnknown; half < 200 || all < 600 || all > 900 {
		t.Errorf("of 600 s, up to %v s count at once, and %v s in all", half, all)
	}
}

// A restarted agent continues where the previous one ended. It also counts what was carried in between, and knows what
// the direct path carries alone.
func TestHandover(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.queues(60, 60)
	s.run(2, 1e6, 0)
	s.run(5, 1e6, 1e6)
	before := s.take().Gained
	path := filepath.Join(t.TempDir(), "history.db")
	store := openStore(t, path)
	if err := store.leave(s.o.Leave()); err != nil {
		t.Fatal(err)
	}
	store.Close()
	left, err := openStore(t, path).left()
	if err != nil {
		t.Fatal(err)
	}
	s.o = Observer{}
	s.o.Resume(left)
	s.now = s.now.Add(time.Second) // no agent runs meanwhile
	s.status.Since = s.now
	c := &s.status.Client.Connections[0]
	c.Since, c.Traffic = s.now, api.TrafficShort
	s.direct, s.detour = 0, 0
	c.Subflows[0].BytesReceived += 1e6
	c.Subflows[1].BytesReceived += 1e6
	c.Subflows[1].Kind, c.Subflows[1].Waypoint = "unknown", "" // until there is a session with bob
	s.run(1, 1e6, 1e6)
	c.Subflows[1].Kind, c.Subflows[1].Waypoint = "mapped", "bob"
	s.run(1, 1e6, 1e6)
	c.Traffic = api.TrafficBulk
	s.run(2, 1e6, 1e6)
	p := s.take()
	s.want("time saved before", before.Saved, 15, 0.01)
	s.want("time saved in 13 s", p.Gained.Saved, 13, 0.01)
	s.want("observed seconds", p.Observed, 12, 0.01)
	s.want("bytes over detours, of at most a look twice", float64(p.Gained.DetourBytes), 14.5e6, 1.5e6)
}

// A state that an agent left long ago, or that seems to be from the future, is not used. Connections that it does not
// contain are not counted.
func TestStaleHandover(t *testing.T) {
	for name, spoil := range map[string]func(*scene, *Left){
		"an hour ago":    func(_ *scene, l *Left) { l.At = l.At.Add(-time.Hour) },
		"in the future":  func(_ *scene, l *Left) { l.At = l.At.Add(time.Hour) },
		"of other ones":  func(s *scene, _ *Left) { s.status.Client.Connections[0].Token = "2" },
		"nothing at all": func(_ *scene, l *Left) { *l = Left{} },
	} {
		s := newScene(t, api.TrafficBulk)
		s.run(2, 1e6, 1e6)
		left := s.o.Leave()
		spoil(s, &left)
		s.o = Observer{}
		s.o.Resume(left)
		s.status.Since = s.now.Add(time.Second)
		s.status.Client.Connections[0].Since = s.status.Since
		s.run(1, 1e9, 1e9)
		if g := s.take().Gained; g.Saved != 0 || g.SavedHigh != 0 {
			t.Errorf("%s: saved %+v", name, g)
		}
	}
}

func TestStalls(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(5, 1e6, 0)
	s.run(2, 1e6, 1e6)
	s.run(4, 0, 2e6)
	s.run(2, 1e6, 1e6)
	s.run(1, 0, 1e6)
	g := s.take().Gained
	s.want("stalls", float64(g.Stalls), 2, 0)
	s.want("time of stalls", g.StallTime, 15, 0.01)
	// The 24 MB and the 3 MB would have taken 24 s and 3 s at 1 MB/s, after the other data.
	s.want("time saved", g.Saved, 12+27, 1)
}

// A direct path that was set aside does not stall. Messages and slow transfers save nothing.
func TestNoStall(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(5, 1e6, 1e6)
	s.status.Client.Connections[0].Subflows[0].State = api.SubflowBackup
	s.run(5, 0, 1e6)
	if g := s.take().Gained; g.Stalls != 0 {
		t.Errorf("a backup stalls: %+v", g)
	}
	for _, s := range []*scene{newScene(t, "messages"), newScene(t, api.TrafficBulk)} {
		s.run(5, 1000, 2000)
		if g := s.take().Gained; g.Saved != 0 || g.Stalls != 0 {
			t.Errorf("messages or a slow transfer saved %+v", g)
		}
	}
}

// Nothing is counted for the time in which the host slept, the clock was set back, or the agent restarted.
func TestGapsAreNotObserved(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(2, 1e6, 1e6)
	before := s.take()
	s.now = s.now.Add(time.Hour)
	s.run(1, 1e9, 1e9)
	s.now = s.now.Add(-2 * time.Hour)
	s.run(1, 1e9, 1e9)
	s.status.Since = s.now
	s.run(1, 1e9, 1e9)
	if p := s.take(); p.Observed != 0 || len(p.Paths) > 0 || p.Gained != (api.Gained{}) {
		t.Errorf("observed %+v, before %+v", p, before)
	}
	s.run(1, 1e6, 1e6)
	s.want("afterwards, bytes over detours", float64(s.take().Gained.DetourBytes), 3e6, 0)
}

// The last seconds of a transfer count, although its counters end with it.
func TestEndOfTransfer(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(4, 1e6, 1e6)
	s.end(2)
	s.want("time saved in 14 s", sum(s.o.Take()).Gained.Saved, 14, 0.01)
	s = newScene(t, api.TrafficBulk)
	s.run(4, 1e6, 1e6)
	s.run(1, 0, 0)
	s.end(2)
	s.want("time saved in 12 s before a pause", sum(s.o.Take()).Gained.Saved, 12, 0.01)
}

// A transfer counts from its beginning, even if it is classified only later. Messages do not count.
func TestTransferFromItsBeginning(t *testing.T) {
	for traffic, want := range map[string]float64{api.TrafficBulk: 15, "messages": 0, api.TrafficShort: 0} {
		s := newScene(t, api.TrafficShort)
		s.run(2, 1e6, 1e6)
		s.status.Client.Connections[0].Traffic = traffic
		s.run(3, 1e6, 1e6)
		s.want("time saved as "+traffic, s.take().Gained.Saved, want, 0.01)
	}
}

// Variation of the direct path's rate is not counted as gain.
func TestUnsteadyDirectPath(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	for range 4 {
		s.run(1, 400_000, 1_600_000)
		s.run(1, 1_600_000, 400_000)
	}
	s.want("time saved in 24 s", s.take().Gained.Saved, 24, 1.5)
}

// A subflow whose counters cannot be read for a moment is not counted again.
func TestCountersMissingOnce(t *testing.T) {
	s := newScene(t, api.TrafficBulk)
	s.run(2, 1e6, 1e6)
	subs := s.status.Client.Connections[0].Subflows
	is := subs[1]
	subs[1].BytesReceived = 0
	s.now = s.now.Add(observeEvery)
	subs[0].BytesReceived += 3e6
	s.o.Observe(&s.status, s.now)
	subs[1] = is
	s.run(2, 1e6, 1e6)
	s.want("time saved", s.take().Gained.Saved, 12, 0.01)
}

// A connection that had carried nothing when it was first observed counts from its beginning. One that was idle for
// longer does not.
func TestConnectionThatIsSeenLate(t *testing.T) {
	for looks, want := range map[int]float64{1: 15, 2: 9} {
		s := newScene(t, api.TrafficBulk)
		conns := s.status.Client.Connections
		s.status.Client.Connections = nil
		for range looks {
			s.now = s.now.Add(observeEvery)
			conns[0].Subflows[0].BytesReceived += 3e6
			conns[0].Subflows[1].BytesReceived += 3e6
			s.o.Observe(&s.status, s.now)
		}
		s.status.Client.Connections = conns
		s.run(4, 1e6, 1e6)
		s.want("time saved", s.take().Gained.Saved, want, 0.01)
	}
}
