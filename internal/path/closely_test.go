package path_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// multitude plays so many connections, each with a detour, that a round of close samples has no time for all.
type multitude struct {
	m     *path.Manager
	now   time.Time
	conns []*member
	// Detours that were ended and that are backups, by their local addresses.
	lost, backup map[netip.AddrPort]bool
}

// member is a connection of a multitude. Its subflows are the direct path and the detour.
type member struct {
	token    path.Token
	every    uint64 // bytes that each subflow receives in a round
	subflows [2]path.Sample
	pause    time.Duration // if not 0, data comes only once in this time
	dead     bool          // nothing comes over the detour any more, since it was set
	failed   bool          // nothing comes over the direct path any more, and so nothing over the detour, which is a backup

	sampled time.Time // last round that included it
	since   time.Time // start of its present series of rounds
	longest time.Duration
	gap     time.Duration // longest time between two rounds
}

const (
	crowdRound = path.LongestInterval
	crowdRoom  = 100
)

func newMultitude(t *testing.T) *multitude {
	t.Helper()
	w := &multitude{m: path.New(path.Config{Policy: policy.Detours{Subflows: 2}, ByWorth: true}), now: birth}
	w.lost, w.backup = make(map[netip.AddrPort]bool), make(map[netip.AddrPort]bool)
	w.m.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}}, w.now)
	w.m.Handle(path.DetourOffered{Detour: path.Detour{ID: "bob", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(ip("bob"), 0)}}, w.now)
	return w
}

// connect opens connections whose subflows receive this many bytes in each round.
func (w *multitude) connect(t *testing.T, connections int, every uint64) (first *member) {
	t.Helper()
	for range connections {
		n := len(w.conns) + 1
		x := &member{token: path.Token(n), every: every, sampled: w.now, since: w.now}
		direct, own := netip.AddrPortFrom(ip("me"), uint16(10_000+n)), netip.AddrPortFrom(ip("me"), uint16(30_000+n))
		server := netip.AddrPortFrom(ip("web"), 80)
		x.subflows[0] = path.Sample{Token: x.token, Local: direct, Remote: server, MinRTT: 20 * time.Millisecond}
		for _, a := range w.m.Handle(path.ConnEstablished{Token: x.token, Local: direct, Remote: server}, w.now) {
			if a, ok := a.(path.CreateSubflow); ok {
				x.subflows[1] = path.Sample{Token: x.token, Local: own, Remote: a.Remote, MinRTT: 30 * time.Millisecond}
				w.m.Handle(path.SubflowRequested{Token: x.token, LocalID: a.LocalID, Local: own}, w.now)
				w.m.Handle(path.SubflowEstablished{Token: x.token, LocalID: a.LocalID, Local: own, Remote: a.Remote}, w.now)
				break
			}
		}
		if x.subflows[1].Token == 0 {
			t.Fatal("a connection has no detour")
		}
		w.conns = append(w.conns, x)
		if first == nil {
			first = x
		}
	}
	return first
}

// round lets the time of a round pass, and returns the number of connections that were sampled in it.
func (w *multitude) round() (sampled int) {
	w.now = w.now.Add(crowdRound)
	for _, x := range w.conns {
		for i := range x.subflows {
			s := &x.subflows[i]
			if i == 1 && x.dead || x.failed {
				s.LastData += crowdRound
				s.LastAnswer += crowdRound
				if i == 1 && x.dead || i == 0 {
					s.Probes = int(s.LastData / time.Second)
				}
				continue
			}
			if x.pause > 0 && w.now.Sub(birth)%x.pause != 0 {
				s.LastData += crowdRound
				s.LastAnswer += crowdRound
				continue
			}
			s.LastData, s.LastAnswer = 0, 0
			segments := x.every/1400 + 1
			s.BytesReceived, s.SegsIn, s.DataSegsIn = s.BytesReceived+x.every, s.SegsIn+segments, s.DataSegsIn+segments
			s.LastSent, s.DataEnd = time.Minute, s.DataEnd+x.every
		}
	}
	if w.now.Sub(birth)%time.Second == 0 {
		all := path.Measured{Complete: true}
		for _, x := range w.conns {
			all.Samples = append(all.Samples, x.subflows[:]...)
		}
		w.tell(all)
	}
	var ev path.Measured
	for token, ends := range w.m.Watched(w.now, crowdRoom) {
		x := w.conns[token-1]
		ev.Samples = append(ev.Samples, x.subflows[:len(ends)]...)
		ev.Progress = append(ev.Progress, path.Progress{Token: token, Received: x.subflows[0].DataEnd})
		sampled++
		x.gap = max(x.gap, w.now.Sub(x.sampled))
		if w.now.Sub(x.sampled) > crowdRound {
			x.since = w.now
		}
		x.sampled, x.longest = w.now, max(x.longest, w.now.Sub(x.since))
	}
	w.tell(ev)
	return sampled
}

func (w *multitude) tell(ev path.Event) {
	for _, a := range w.m.Handle(ev, w.now) {
		switch a := a.(type) {
		case path.DestroySubflow:
			w.lost[a.Local] = true
		case path.SetBackup:
			w.backup[a.Local] = a.Backup
		}
	}
}

// run lets time pass. No round may include many more connections than it has time for.
func (w *multitude) run(t *testing.T, d time.Duration) {
	t.Helper()
	for range d / crowdRound {
		if n := w.round(); n > crowdRoom*11/10 {
			t.Fatalf("%d connections were sampled in a round", n)
		}
	}
}

func (w *multitude) traffic(x *member) string {
	for _, c := range w.m.Snapshot(w.now).Conns {
		if c.Token == x.token {
			return c.Traffic
		}
	}
	return ""
}

const (
	bulkEvery     = 400_000
	messagesEvery = 300
)

// A connection that carries messages is measured beside any number of bulk connections. Each of those has its turn.
func TestTooManyToMeasure(t *testing.T) {
	const bulk = 6 * crowdRoom
	w := newMultitude(t)
	w.connect(t, bulk, bulkEvery)
	w.run(t, time.Minute)
	ssh := w.connect(t, 1, messagesEvery)
	w.run(t, 5*time.Second)
	if is := w.traffic(ssh); is != "messages" {
		t.Errorf("the connection with messages counts as %q", is)
	}
	for _, x := range w.conns {
		x.longest, x.gap, x.since = 0, 0, w.now
	}
	w.run(t, 8*time.Minute)
	if ssh.gap > crowdRound {
		t.Errorf("the connection with messages was not sampled for %v", ssh.gap)
	}
	for _, x := range w.conns[:bulk] {
		if x.longest < 29*time.Second || x.gap > 5*time.Second {
			t.Fatalf("connection %d was measured for %v at most, and not sampled for %v", x.token, x.longest, x.gap)
		}
		if is := w.traffic(x); is != "bulk" {
			t.Fatalf("connection %d counts as %q", x.token, is)
		}
	}
	if is := w.m.Snapshot(w.now).Sampling; is.Active != bulk+1 || is.Measured < crowdRoom/2 || is.Measured >= crowdRoom {
		t.Errorf("%+v", is)
	}
	for _, x := range w.conns[crowdRoom-1 : bulk] {
		w.m.Handle(path.ConnClosed{Token: x.token}, w.now)
	}
	w.run(t, time.Second)
	if n := w.round(); n != crowdRoom {
		t.Errorf("%d of %d connections are sampled in a round that has time for all", n, crowdRoom)
	}
	if is := w.m.Snapshot(w.now).Sampling; is != (path.Sampling{Active: crowdRoom, Measured: crowdRoom}) {
		t.Errorf("%+v", is)
	}
}

// Too many connections with messages take turns, too, and leave a part of the slots to bulk traffic.
func TestTooManyMessages(t *testing.T) {
	w := newMultitude(t)
	bulk := w.connect(t, 10, bulkEvery)
	w.connect(t, 3*crowdRoom, messagesEvery)
	w.run(t, 6*time.Minute)
	for _, x := range w.conns {
		if x.longest < 29*time.Second {
			t.Fatalf("connection %d was measured for %v at most", x.token, x.longest)
		}
		if want := map[bool]string{true: "bulk", false: "messages"}[x.every == bulk.every]; w.traffic(x) != want {
			t.Fatalf("connection %d counts as %q, want %q", x.token, w.traffic(x), want)
		}
	}
}

// Many connections that never show their kind of traffic, such as polling ones, do not take the slot of one with messages,
// not even of a new one.
func TestMessagesBesideManyUnknown(t *testing.T) {
	w := newMultitude(t)
	polling := w.connect(t, 4*crowdRoom, messagesEvery)
	for _, x := range w.conns {
		x.pause = 4 * time.Second
	}
	w.run(t, 5*time.Minute)
	if is := w.traffic(polling); is != "short" {
		t.Fatalf("the traffic of a polling connection counts as %q", is)
	}
	ssh := w.connect(t, 1, messagesEvery)
	w.run(t, 5*time.Second)
	if is := w.traffic(ssh); is != "messages" {
		t.Errorf("the connection with messages counts as %q", is)
	}
	ssh.gap = 0
	w.run(t, 5*time.Minute)
	if ssh.gap > crowdRound {
		t.Errorf("the connection with messages was not sampled for %v", ssh.gap)
	}
	for _, x := range w.conns {
		if x.longest < 25*time.Second {
			t.Fatalf("connection %d was measured for %v at most", x.token, x.longest)
		}
	}
}

// However the number of active connections changes, none of those that are not measured waits for much longer than others
// until it is sampled.
func TestRareSamplesAreEven(t *testing.T) {
	w := newMultitude(t)
	w.connect(t, 8*crowdRoom, bulkEvery)
	random := rand.New(rand.NewPCG(30, 11))
	w.run(t, 30*time.Second)
	for _, x := range w.conns {
		x.gap = 0
	}
	for range 2 * time.Minute / crowdRound {
		for _, x := range w.conns[4*crowdRoom:] {
			if random.IntN(40) == 0 {
				x.pause = 30*time.Second - x.pause // so that it becomes inactive, or active again
			}
		}
		w.round()
	}
	longest := time.Duration(0)
	for _, x := range w.conns[:4*crowdRoom] {
		longest = max(longest, x.gap)
	}
	// At most 760 of 800 connections have no slot, and 50 of them are in each round.
	if most := 16 * crowdRound; longest > most {
		t.Errorf("a connection was not sampled for %v, want at most %v", longest, most)
	}
}

// Where not all connections are measured, a detour through which nothing comes is still found soon.
func TestDeadDetourAmongTooMany(t *testing.T) {
	w := newMultitude(t)
	w.connect(t, 6*crowdRoom, bulkEvery)
	w.run(t, time.Minute)
	var dead []*member
	for _, x := range w.conns {
		if w.now.Sub(x.sampled) > crowdRound && len(dead) < 10 {
			x.dead = true
			dead = append(dead, x)
		}
	}
	w.run(t, 20*time.Second)
	for _, x := range dead {
		if !w.lost[x.subflows[1].Local] {
			t.Errorf("the detour of connection %d was not ended", x.token)
		}
	}
	if len(dead) == 0 || len(w.lost) != len(dead) {
		t.Errorf("%d detours died, %d were ended", len(dead), len(w.lost))
	}
}

// A connection whose direct path fails while it is not measured goes on over the detour that stands by.
func TestDeadDirectPathAmongTooMany(t *testing.T) {
	w := newMultitude(t)
	w.connect(t, 4*crowdRoom, messagesEvery)
	w.run(t, time.Minute)
	var failed []*member
	for len(failed) == 0 && w.now.Sub(birth) < 5*time.Minute {
		w.round()
		for _, x := range w.conns {
			// Its turn has just ended, so the next one is more than a minute away.
			if w.now.Sub(x.sampled) == crowdRound && x.sampled.Sub(x.since) > 25*time.Second && w.backup[x.subflows[1].Local] {
				x.failed = true
				failed = append(failed, x)
			}
		}
	}
	w.run(t, 8*time.Second)
	if len(failed) == 0 {
		t.Error("no turn ended")
	}
	for _, x := range failed {
		if w.backup[x.subflows[1].Local] {
			t.Errorf("the detour of connection %d still stands by", x.token)
		}
	}
}

// A connection that loses its slot while it omits detours, or while a detour is about to give its place to another
// waypoint, uses these detours again.
func TestTryoutsEndWithoutASlot(t *testing.T) {
	random := rand.New(rand.NewPCG(30, 12))
	for i := range networks(6) {
		behind, home := behindHome(random)
		several, names := six(random)
		for name, c := range map[string]struct {
			ways   map[string]*way
			names  []string
			window *link
		}{
			"an omission": {behind, []string{"near", "loaded"}, home},
			"a screening": {several, names, nil},
		} {
			f := offeredTo(t, i, c.ways, c.names...)
			f.connect(50e3) // messages, which have the only slot
			d := f.connect(0)
			if c.window != nil {
				d.waitsFor(c.window)
			}
			for d.standsBy() == nil && f.now.Sub(f.start) < 30*time.Second {
				f.run(dt)
			}
			omitted := d.standsBy()
			if omitted == nil {
				t.Errorf("%d, %s: none began", i, name)
				continue
			}
			for range f.m.Watched(f.now, 1) {
			}
			f.run(500 * time.Millisecond)
			all := f.measured()
			all.Complete = true
			f.tell(all)
			if d.standsBy() != nil || d.find(omitted.local) == nil {
				t.Errorf("%d, %s: a detour does not carry again: %v", i, name, d.log)
			}
		}
	}
}

// standsBy returns a detour that is a backup, or nil.
func (d *transfer) standsBy() *lane {
	for _, l := range d.lanes {
		if l.waypoint != "" && l.backup {
			return l
		}
	}
	return nil
}
