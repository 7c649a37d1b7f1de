package crowd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
	"github.com/detour-collective/dcol/internal/racetest"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
	"github.com/detour-collective/dcol/lab/stats"
)

// settling is a crowd of clients with a download each, in virtual time. Each decides with a path manager of its own,
// and each waypoint decides whether it is loaded. Nobody knows the others.
type settling struct {
	now       time.Time
	random    *rand.Rand
	waypoints []*crowdedWaypoint
	clients   []*downloader
	direct    *crowdedWaypoint // the direct path that all share; nil: each client has its own
	queue     time.Duration    // of a path that is full
	uneven    float64          // how unequally TCP divides a full path: the standard deviation of a share's logarithm
}

// crowdedWaypoint shares its capacity equally among those who download through it.
type crowdedWaypoint struct {
	name     string
	addr     netip.Addr
	capacity float64 // bytes a second
	weights  float64 // of those who download
	load     giving.Load
	rate     float64 // in the last step
	users    int
	told     time.Time
	gives    float64
}

// downloader is one client.
type downloader struct {
	m        *path.Manager
	begins   time.Time
	begun    bool
	subflows []*downloading
	port     uint16
	upTo     uint64
	goodput  float64 // in the last step
	joins    int
}

type downloading struct {
	waypoint      *crowdedWaypoint // nil: direct
	local, remote netip.AddrPort
	bytes         float64
	segments      uint64
	late          uint64 // segments that arrived after a gap
	backup        bool
	weight        float64 // of its share of a full path; it changes every few seconds
}

const (
	settleStep = 200 * time.Millisecond
	wants      = 1e7 // bytes a second that a client can take over a detour
	direct     = 1e6 // and has without
	trip       = 40 * time.Millisecond
	losesEvery = 2500 * time.Millisecond // a subflow that a full link limits
	weighs     = 4 * time.Second         // a subflow's share
)

// newSettling returns n clients and some waypoints of different capacity, of which all together the clients use so
// much.
func newSettling(n, waypoints int, used float64, others time.Duration, seed uint64) *settling {
	s := &settling{now: time.Unix(1e9, 0), random: rand.New(rand.NewPCG(seed, 1))}
	var sum float64
	for i := range waypoints {
		w := &crowdedWaypoint{name: fmt.Sprintf("w%d", i), addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i)}), capacity: 1 + 4*s.random.Float64()}
		sum += w.capacity
		s.waypoints = append(s.waypoints, w)
	}
	for _, w := range s.waypoints {
		w.capacity *= float64(n) * wants / used / sum
	}
	for range n {
		s.add(2, 2*time.Second, others)
	}
	return s
}

// add adds a client whose connection has so many subflows, and begins at any time in so long. The first waypoint has a round
// trip of 10 ms; the others' is given, so that all clients begin with the first if it is much nearer.
func (s *settling) add(subflows int, within, others time.Duration) {
	c := &downloader{
		m: path.New(path.Config{Policy: policy.Detours{Subflows: subflows}, ByWorth: true, Seed: s.random.Uint64()}), port: 20000,
		begins: s.now.Add(time.Duration(s.random.Float64() * float64(within))),
	}
	s.tell(c, path.LocalAddrs{Addrs: []netip.Addr{downloadsTo.Addr()}})
	for i, w := range s.waypoints {
		s.tell(c, path.DetourOffered{Detour: path.Detour{
			ID: path.DetourID(w.name), Kind: path.InBand, Waypoint: w.name, Remote: netip.AddrPortFrom(w.addr, 0),
		}})
		rtt := 10 * time.Millisecond
		if i > 0 {
			rtt = others
		}
		s.tell(c, path.WaypointMeasured{Waypoint: w.name, Addr: w.addr, RTT: rtt})
	}
	s.clients = append(s.clients, c)
}

// Each client is in a network of its own, so all have the same address.
var (
	downloadsTo    = netip.MustParseAddrPort("10.0.0.1:5000")
	downloadedFrom = netip.MustParseAddrPort("203.0.113.80:80")
)

func (s *settling) tell(c *downloader, ev path.Event) {
	var follow []path.Event
	for _, a := range c.m.Handle(ev, s.now) {
		switch a := a.(type) {
		case path.CreateSubflow:
			c.port++
			f := &downloading{local: netip.AddrPortFrom(a.Local, c.port), remote: a.Remote, backup: a.Backup}
			for _, w := range s.waypoints {
				if w.name == a.Waypoint {
					f.waypoint = w
				}
			}
			c.subflows = append(c.subflows, f)
			c.joins++
			follow = append(follow, path.SubflowRequested{Token: 1, LocalID: a.LocalID, Local: f.local},
				path.SubflowEstablished{Token: 1, LocalID: a.LocalID, Local: f.local, Remote: f.remote})
		case path.DestroySubflow:
			c.subflows = slices.DeleteFunc(c.subflows, func(f *downloading) bool { return f.local == a.Local })
		case path.SetBackup:
			for _, f := range c.subflows {
				f.backup = f.backup && f.local != a.Local || a.Backup && f.local == a.Local
			}
		}
	}
	for _, ev := range follow {
		s.tell(c, ev)
	}
}

// step lets some time pass: data moves, clients look at it, and waypoints now and then say whether they are loaded.
func (s *settling) step() {
	s.now = s.now.Add(settleStep)
	for _, w := range s.waypoints {
		w.users, w.weights = 0, 0
	}
	if s.direct != nil {
		s.direct.users, s.direct.weights = 0, 0
	}
	for _, c := range s.clients {
		for _, f := range c.subflows {
			if w := s.over(f); w != nil && !f.backup {
				w.users++
				w.weights += s.weigh(f)
			}
		}
	}
	for _, w := range s.waypoints {
		w.rate = min(w.capacity, float64(w.users)*wants)
	}
	for _, c := range s.clients {
		s.download(c)
	}
	if s.now.UnixMilli()%2000 == 0 {
		for _, w := range s.waypoints {
			usage := giving.Usage{Members: w.users, Rate: w.rate, Limit: w.capacity}
			until, gives := w.load.Take(usage, s.now), 0.0
			if !until.IsZero() || usage.Full() {
				gives = 8 * usage.Gives()
			}
			if until.Equal(w.told) && gives == w.gives {
				continue
			}
			w.told, w.gives = until, gives
			for _, c := range s.clients {
				s.tell(c, path.WaypointLoaded{Waypoint: w.name, Addr: w.addr, Until: until, Gives: gives})
			}
		}
	}
}

// weigh returns the weight of a subflow's share of a full path.
func (s *settling) weigh(f *downloading) float64 {
	switch {
	case s.uneven == 0:
		f.weight = 1
	case f.weight == 0 || s.random.Float64() < settleStep.Seconds()/weighs.Seconds():
		f.weight = math.Exp(s.uneven * s.random.NormFloat64())
	}
	return f.weight
}

// over returns what the subflow shares with others; nil: nothing.
func (s *settling) over(f *downloading) *crowdedWaypoint {
	if f.waypoint == nil {
		return s.direct
	}
	return f.waypoint
}

func (s *settling) download(c *downloader) {
	if s.now.Before(c.begins) {
		return
	}
	if !c.begun {
		c.begun = true
		c.subflows = append(c.subflows, &downloading{local: downloadsTo, remote: downloadedFrom})
		s.tell(c, path.ConnEstablished{Token: 1, Local: downloadsTo, Remote: downloadedFrom})
	}
	for {
		at, ok := c.m.Next()
		if !ok || at.After(s.now) {
			break
		}
		s.tell(c, path.Tick{})
	}
	ev := path.Measured{}
	c.goodput = 0
	for _, f := range c.subflows {
		rate, receiver := float64(direct), time.Duration(0)
		if w := s.over(f); w != nil {
			rate = wants
			if w.weights > 0 {
				rate = min(wants, w.capacity*f.weight/w.weights)
			}
			if s.queue > 0 && rate < wants {
				receiver = trip + s.queue
				if !f.backup && s.random.Float64() < settleStep.Seconds()/losesEvery.Seconds() {
					f.late += uint64(rate * receiver.Seconds() / 1400)
				}
			}
		}
		if !f.backup {
			c.goodput += rate
			f.bytes += rate * settleStep.Seconds()
			f.segments = uint64(f.bytes / 1400)
		}
		ev.Samples = append(ev.Samples, path.Sample{
			Token: 1, Local: f.local, Remote: f.remote, BytesReceived: uint64(f.bytes), MinRTT: trip, RTT: trip, ReceiverRTT: receiver,
			SegsIn: f.segments, DataSegsIn: f.segments, OutOfOrder: f.late, DataEnd: uint64(f.bytes), LastSent: time.Hour,
		})
	}
	c.upTo += uint64(c.goodput * settleStep.Seconds())
	ev.Progress = []path.Progress{{Token: 1, Received: c.upTo}}
	s.tell(c, ev)
}

// fairness returns Jain's index of the clients' goodput, and the highest use of a waypoint beside its share of the
// capacity.
func (s *settling) fairness() (jain, crowded float64) {
	goodput := make([]float64, len(s.clients))
	for i, c := range s.clients {
		goodput[i] = c.goodput
	}
	var users, capacity float64
	for _, w := range s.waypoints {
		users += float64(w.users)
		capacity += w.capacity
	}
	for _, w := range s.waypoints {
		crowded = max(crowded, float64(w.users)/users/(w.capacity/capacity))
	}
	return stats.Jain(goodput), crowded
}

// Clients begin with waypoints without regard to their capacity, or all with the nearest, which has room for few of them.
// Waypoints say that they are loaded, and the clients leave by lot. All is the same in each run.
func TestSimulatedCrowdSettles(t *testing.T) {
	racetest.Skip(t)
	const even, nearest = 10 * time.Millisecond, 60 * time.Millisecond
	for _, c := range []struct {
		clients, waypoints int
		used               float64       // of the waypoints' capacity
		others             time.Duration // round trip to all waypoints but the first
		seeds              uint64
		fair, spread       time.Duration // by when the goodput is fair, and no waypoint is above 1.5 times its share
	}{
		{1000, 6, 0.75, even, 1, 15 * time.Second, 15 * time.Second},
		{300, 3, 0.75, even, 3, 15 * time.Second, 15 * time.Second},
		{300, 6, 0.6, even, 3, 15 * time.Second, 15 * time.Second},
		{300, 6, 0.85, even, 3, 15 * time.Second, 15 * time.Second},
		{300, 12, 0.75, even, 3, 15 * time.Second, 20 * time.Second},
		{1000, 6, 0.75, nearest, 1, 25 * time.Second, 40 * time.Second},
		{300, 3, 0.75, nearest, 3, 20 * time.Second, 25 * time.Second},
	} {
		for seed := range c.seeds {
			t.Run(fmt.Sprintf("%d clients, %d waypoints, %v used, others at %v, seed %d", c.clients, c.waypoints, c.used, c.others, seed), func(t *testing.T) {
				t.Parallel()
				s := newSettling(c.clients, c.waypoints, c.used, c.others, seed)
				var unfair, crowded time.Duration // last time
				for at := settleStep; at <= c.spread+5*time.Second; at += settleStep {
					s.step()
					if at%time.Second != 0 {
						continue
					}
					jain, most := s.fairness()
					if jain < 0.95 {
						unfair = at
					}
					if most > 1.5 {
						crowded = at
					}
				}
				joins := 0
				for _, c := range s.clients {
					joins += c.joins
				}
				each := float64(joins) / float64(c.clients)
				t.Logf("fair after %v, spread after %v, %.2f joins each", unfair, crowded, each)
				if unfair >= c.fair || crowded >= c.spread {
					t.Errorf("unfair at %v and crowded at %v, want them over after %v and %v", unfair, crowded, c.fair, c.spread)
				}
				if each > 3 {
					t.Errorf("%.2f joins each: the clients wander", each)
				}
			})
		}
	}
}

// If all waypoints are loaded, nobody leaves, and everybody is served.
func TestSimulatedCrowdStaysWhereAllAreLoaded(t *testing.T) {
	racetest.Skip(t)
	t.Parallel()
	s := newSettling(100, 4, 2, 10*time.Millisecond, 1)
	for at := settleStep; at <= 40*time.Second; at += settleStep {
		s.step()
	}
	joins := 0
	for i, c := range s.clients {
		joins += c.joins
		if len(c.subflows) != 2 {
			t.Errorf("client %d has %d subflows", i, len(c.subflows))
		}
	}
	if joins > 150 {
		t.Errorf("100 clients joined %d times", joins)
	}
}
