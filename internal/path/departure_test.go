package path_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// left returns the latest departure from a path of a connection, or a zero one.
func left(m *path.Manager, token path.Token, waypoint string, now time.Time) (latest path.Departure) {
	for _, c := range m.Snapshot(now).Conns {
		for _, d := range c.Left {
			if c.Token == token && d.Waypoint == waypoint {
				latest = d
			}
		}
	}
	return latest
}

// A connection remembers why it left a path, with the numbers that decided.
func TestDepartures(t *testing.T) {
	lossy := func(s *selection) {
		s.paths["bob"].loss = 0.05
		s.offer("bob")
		s.connect()
		s.bulk(4 * time.Second)
	}
	for name, c := range map[string]struct {
		paths    map[string]*pathWorth
		plays    func(*selection)
		waypoint string
		ended    bool
		code     string
		why      string // the numbers are replaced by #
	}{
		"another lost less": {
			plays: func(s *selection) {
				lossy(s)
				s.offer("carol")
				s.bulk(16 * time.Second)
			},
			waypoint: "bob", ended: true, code: "lossy", why: "it lost # % of the packets, the direct path # %",
		},
		"another lost less, and there is no other detour": {
			plays: func(s *selection) { lossy(s); s.bulk(26 * time.Second) }, waypoint: "bob", code: "lossy",
			why: "it lost # % of the packets, the direct path # %",
		},
		"the direct path lost more": {
			plays: func(s *selection) {
				s.paths[""].loss = 0.08
				s.offer("bob")
				s.connect()
				s.bulk(40 * time.Second)
			},
			code: "lossy", why: "it lost # % of the packets, the path through bob # %",
		},
		"another waypoint is nearer": {
			paths: map[string]*pathWorth{"": at(120 * time.Millisecond), "bob": at(100 * time.Millisecond), "carol": at(30 * time.Millisecond)},
			plays: func(s *selection) {
				for _, waypoint := range []string{"carol", "bob"} {
					s.offer(waypoint)
					s.connect()
					s.messages(10*time.Second, dt)
					s.tell(path.DetourWithdrawn{ID: path.DetourID(waypoint)})
				}
				s.offer("bob", "carol")
				s.messages(time.Minute, dt)
			},
			waypoint: "bob", ended: true, code: "slower", why: "messages took # ms over it, # ms over the path through carol",
		},
		"messages move": {
			plays: func(s *selection) {
				s.offer("bob")
				s.connect()
				s.exchanges(20*time.Second, 500*time.Millisecond)
				s.paths[""].trip = 320 * time.Millisecond
				s.exchanges(1500*time.Millisecond, 500*time.Millisecond)
			},
			code: "slower", why: "messages took # ms over it, # ms over the path through bob",
		},
		"another waypoint gives more": {
			paths: unlike(),
			plays: func(s *selection) {
				s.bulkOver("carol", 20*time.Second)
				s.offer("bob")
				s.connect()
				s.bulk(20 * time.Second)
				s.offer("carol")
				s.bulk(time.Minute)
			},
			waypoint: "bob", ended: true, code: "less-goodput", why: "bulk traffic got # Mbit/s over it, and could expect # Mbit/s of carol",
		},
		"its waypoint is loaded": {
			plays: func(s *selection) {
				s.offer("bob")
				s.connect()
				s.bulk(5 * time.Second)
				s.offer("carol")
				for range 10 {
					s.tell(path.WaypointLoaded{Waypoint: "bob", Addr: ip("bob"), Until: s.now.Add(15 * time.Second)})
					s.bulk(10 * time.Second)
				}
			},
			waypoint: "bob", ended: true, code: "loaded", why: "its waypoint said that it was loaded",
		},
		"nothing comes": {
			plays: func(s *selection) {
				s.offer("bob")
				s.connect()
				s.bulk(10 * time.Second)
				s.paths["bob"].dead = true
				s.bulk(20 * time.Second)
			},
			waypoint: "bob", ended: true, code: "silent", why: "nothing came over it for # s while another path worked, and # probes were not answered",
		},
		"the operator avoids its waypoint": {
			plays: func(s *selection) {
				s.offer("bob")
				s.connect()
				s.bulk(3 * time.Second)
				s.tell(path.Steered{Steering: path.Steering{Avoid: []string{"bob"}}})
				s.bulk(time.Second)
			},
			waypoint: "bob", ended: true, code: "unwanted", why: "you did not want its waypoint (dcol use, dcol avoid)",
		},
		"the operator wants another waypoint": {
			plays: func(s *selection) {
				s.offer("bob")
				s.connect()
				s.bulk(3 * time.Second)
				s.offer("carol")
				s.tell(path.Steered{Steering: path.Steering{Use: []string{"carol"}}})
				s.bulk(3 * time.Second)
			},
			waypoint: "bob", ended: true, code: "other-wanted", why: "you wanted another waypoint to be taken first (dcol use)",
		},
		"its waypoint leaves": {
			plays: func(s *selection) {
				s.offer("bob")
				s.connect()
				s.bulk(3 * time.Second)
				s.tell(path.WaypointLeft{Waypoint: "bob", Addr: ip("bob")})
				s.bulk(time.Second)
			},
			waypoint: "bob", ended: true, code: "withdrawn", why: "its waypoint is not used any more",
		},
		"the operator lowers the number of subflows": {
			plays: func(s *selection) {
				s.offer("bob")
				s.connect()
				s.bulk(3 * time.Second)
				s.lower(1)
				s.bulk(5 * time.Second)
			},
			waypoint: "bob", ended: true, code: "surplus", why: "the configuration allowed fewer subflows",
		},
		"it broke": {
			plays: func(s *selection) {
				s.offer("bob")
				s.connect()
				s.bulk(3 * time.Second)
				bob := s.over("bob")
				s.subflows = s.subflows[:1]
				s.tell(path.SubflowClosed{Token: s.token, Local: bob.local, Remote: bob.remote})
				s.bulk(time.Second)
			},
			waypoint: "bob", ended: true, code: "closed", why: "the other end closed it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.paths == nil {
				c.paths = map[string]*pathWorth{"": good(), "bob": good(), "carol": good()}
			}
			s := newSelection(t, c.paths)
			c.plays(s)
			d := left(s.m, s.token, c.waypoint, s.now)
			if d.Ended != c.ended || d.Reason.Cause.Code() != c.code || withoutNumbers(d.Why()) != c.why {
				t.Fatalf("left %q, ended %v, %s: %s; %v", d.Waypoint, d.Ended, d.Reason.Cause.Code(), d.Why(), s.log)
			}
			if d.At.Before(s.start) || d.At.After(s.now) {
				t.Errorf("at %v", d.At)
			}
			// It is kept when the connection ends.
			s.tell(path.ConnClosed{Token: s.token})
			x := s.m.Explain(netip.AddrPortFrom(ip("web"), 80), netip.Addr{}, s.now)
			if all := x.Closed[0].Left; len(all) == 0 || all[len(all)-1].Reason.Cause.Code() != c.code {
				t.Errorf("after the end: %+v", all)
			}
		})
	}
}

// withoutNumbers replaces the numbers of a text.
func withoutNumbers(text string) string {
	var b strings.Builder
	inNumber := false
	for _, r := range text {
		is := r >= '0' && r <= '9' || inNumber && r == '.'
		if is && !inNumber {
			b.WriteByte('#')
		} else if !is {
			b.WriteRune(r)
		}
		inNumber = is
	}
	return b.String()
}

// A departure has the numbers that its words have.
func TestNumbersOfDepartures(t *testing.T) {
	s := newSelection(t, unlike())
	s.bulkOver("carol", 20*time.Second)
	s.offer("bob")
	s.connect()
	s.bulk(20 * time.Second)
	s.offer("carol")
	s.bulk(time.Minute)
	d := left(s.m, s.token, "bob", s.now)
	x := d.Reason.Compared()
	if len(x) != 1 || x[0].Waypoint != "carol" || x[0].Goodput < 2e6 || x[0].Goodput > 2.5e6 || x[0].OtherGoodput < 15e6 || x[0].OtherGoodput > 19e6 {
		t.Errorf("%+v", x)
	}
}

// If the rate of a detour collapses, its connection remembers the rates before and after.
func TestDepartureOfCollapsed(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 1))
	fled := 0
	for i := range networks(8) {
		f, d, bob := turning(t, i, random)
		before := bob.rate
		bob.rate *= 0.05
		f.run(6 * time.Second)
		x := left(f.m, d.token, "bob", f.now)
		if x.Reason.Cause != path.CauseCollapsed {
			continue // it lost packets, too
		}
		fled++
		if n := x.Reason.Numbers; !x.Ended || n.Before < before/2 || n.Goodput > before/4 || !strings.HasPrefix(x.Why(), "its rate fell from ") {
			t.Errorf("%v, of %.0f: %+v: %s", x.Ended, before, n, x.Why())
		}
	}
	if fled == 0 {
		t.Error("none fled")
	}
}

// If a detour becomes a backup because it adds nothing, its connection remembers what it got with it and without it.
func TestDepartureOfOmitted(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 21))
	omitted := 0
	for i := range networks(6) {
		ways, home := behindHome(random)
		f := newFluid(t, i, ways, threeSubflows)
		f.offer("near", "loaded")
		d := f.connect(0).waitsFor(home)
		f.run(10 * time.Second)
		x := left(f.m, d.token, "loaded", f.now)
		if x.Reason.Cause != path.CauseAddsNothing {
			continue
		}
		omitted++
		if n := x.Reason.Numbers; x.Ended || n.With == 0 || n.Without < 0.9*n.With || !strings.HasPrefix(x.Why(), "bulk traffic got ") {
			t.Errorf("%v: %+v: %s", x.Ended, n, x.Why())
		}
	}
	if omitted == 0 {
		t.Error("none was omitted")
	}
}

// If a detour gives its place to be compared with a waypoint, its connection remembers what it carried.
func TestDepartureOfYielding(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 1))
	yielded := 0
	for i := range networks(3) {
		ways, names := six(random)
		f := offeredTo(t, i, ways, names...)
		f.connect(0)
		f.run(20 * time.Second)
		for _, x := range f.m.Snapshot(f.now).Conns[0].Left {
			if x.Reason.Cause != path.CauseYields {
				continue
			}
			yielded++
			if other := x.Reason.Compared()[0]; !x.Ended || other.Waypoint == "" || other.Waypoint == x.Waypoint || other.Goodput == 0 || !strings.Contains(x.Why(), other.Waypoint) {
				t.Errorf("%+v: %s", other, x.Why())
			}
		}
	}
	if yielded == 0 {
		t.Error("no detour gave its place")
	}
}

// A connection remembers its last departures, one of each path and cause.
func TestDeparturesAreFew(t *testing.T) {
	s := newSelection(t, map[string]*pathWorth{"": good()})
	s.connect()
	for i := range 12 {
		waypoint := fmt.Sprint("w", i)
		s.paths[waypoint] = good()
		s.offerAt(waypoint, i)
		for range 2 {
			s.bulk(time.Second)
			s.tell(path.Steered{Steering: path.Steering{Avoid: []string{waypoint}}})
			s.bulk(time.Second)
			s.tell(path.Steered{})
			s.bulk(time.Second)
		}
		s.tell(path.DetourWithdrawn{ID: path.DetourID(waypoint)})
		s.tell(path.Steered{Steering: path.Steering{Avoid: []string{waypoint}}})
		s.bulk(time.Second)
	}
	all := s.m.Snapshot(s.now).Conns[0].Left
	if len(all) != 8 {
		t.Fatalf("%d departures: %v", len(all), s.log)
	}
	for i, d := range all {
		if want := fmt.Sprint("w", 4+i); d.Waypoint != want {
			t.Errorf("departure %d is from %s, want %s", i, d.Waypoint, want)
		}
	}
}

// offerAt puts an in-band detour on offer whose waypoint has the nth address of a block.
func (s *selection) offerAt(waypoint string, n int) {
	s.tell(path.DetourOffered{Detour: path.Detour{
		ID: path.DetourID(waypoint), Kind: path.InBand, Waypoint: waypoint,
		Remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + n)}), 0),
	}})
}

// Each cause has a code of its own, and each that can end the use of a path has words.
func TestCauses(t *testing.T) {
	codes, words := make(map[string]bool), make(map[string]bool)
	for cause := path.CauseChosen; cause <= path.CauseClosed; cause++ {
		if code := cause.Code(); code == "" || codes[code] {
			t.Errorf("cause %d: code %q", cause, code)
		}
		codes[cause.Code()] = true
		switch cause {
		case path.CauseChosen, path.CauseDoubted, path.CauseOmitted, path.CauseMessages: // no path is left for these causes
			continue
		default:
		}
		d := path.Departure{Reason: path.SubflowReason{Cause: cause}}
		if why := d.Why(); why == "" || words[why] {
			t.Errorf("%s: %q", cause.Code(), why)
		}
		words[d.Why()] = true
	}
	// A detour that began as a backup for its earlier losses was compared with no other.
	d := path.Departure{Reason: path.SubflowReason{Cause: path.CauseLossy, Numbers: &path.Numbers{Loss: 0.05}}}
	if why := d.Why(); why != "it lost 5.0 % of the packets" {
		t.Errorf("lossy: %q", why)
	}
	if code := path.CauseNone.Code(); code != "" {
		t.Errorf("no cause has the code %q", code)
	}
}

// The reason of a subflow has a code and the numbers of its words.
func TestReasonsOfSubflows(t *testing.T) {
	s := newSelection(t, map[string]*pathWorth{"": {trip: 40 * time.Millisecond, rate: 800}, "bob": {trip: 200 * time.Millisecond, rate: 800}})
	s.offer("bob")
	s.connect()
	if r := s.shown("bob").Reason; r.Cause != path.CauseChosen || s.shown("").Reason.Cause != path.CauseNone {
		t.Errorf("at first: %+v, direct %+v", r, s.shown("").Reason)
	}
	s.messages(10*time.Second, 2*dt)
	r := s.shown("bob").Reason
	if x := r.Compared(); r.Cause.Code() != "messages" || len(x) != 1 || x[0].Waypoint != "" || x[0].Wait < 200*time.Millisecond || x[0].OtherWait > 50*time.Millisecond {
		t.Errorf("messages: %s %+v", r.Cause.Code(), x)
	}
	s.connect()
	if r = s.shown("bob").Reason; r.Cause.Code() != "messages" || len(r.Compared()) > 0 {
		t.Errorf("messages are likely: %s %+v", r.Cause.Code(), r.Compared())
	}
	s.paths["bob"].loss = 0.05
	s.connect()
	s.bulk(20 * time.Second)
	r = s.shown("bob").Reason
	if x := r.Compared(); r.Cause.Code() != "lossy" || len(x) != 1 || r.Numbers.Loss < 0.03 || x[0].Loss != r.Numbers.Loss {
		t.Errorf("loss: %s %+v %+v", r.Cause.Code(), r.Numbers, x)
	}
}
