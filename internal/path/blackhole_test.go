package path_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// serverIn returns the address of a server in the n-th of many networks.
func serverIn(n int) netip.Addr { return netip.AddrFrom4([4]byte{100 + byte(n>>8), byte(n), 1, 1}) }

// connectTo begins a connection to the server in the n-th network, after the last connection ended.
func (s *selection) connectTo(n int) {
	s.server = serverIn(n)
	s.connect()
}

// newPerfect offers bob, with perfect measurements that others praise, and carol. Both are good.
func newPerfect(t *testing.T) *selection {
	t.Helper()
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": {trip: time.Millisecond, rate: 8000}, "carol": good()})
	s.offer("bob", "carol")
	s.praise()
	return s
}

// praise reports that bob measures better than carol.
func (s *selection) praise() {
	s.tell(path.WaypointMeasured{Waypoint: "bob", Addr: ip("bob"), RTT: time.Millisecond, Packets: 1e6})
	s.tell(path.WaypointMeasured{Waypoint: "carol", Addr: ip("carol"), RTT: 15 * time.Millisecond})
	s.tell(path.ClaimsHeard{Claims: []claim.Heard{{Member: "mallory", At: s.now, Claims: []claim.Claim{{Waypoint: "bob", Loss: 1, Goodput: claim.MostGoodput}}}}})
}

// newTunnelled is newPerfect with a tunnel to bob.
func newTunnelled(t *testing.T) *selection {
	t.Helper()
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": {trip: time.Millisecond, rate: 8000}, "carol": good()})
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me"), ip("tun")}, Tunnels: []netip.Addr{ip("tun")}})
	s.tell(path.DetourOffered{Detour: path.Detour{ID: "tunnel", Kind: path.WireGuard, Waypoint: "bob", Local: ip("tun"), Endpoint: ip("bob")}})
	s.offer("carol")
	s.praise()
	return s
}

// alongside returns the waypoint that another connection to the n-th network would take now.
func (s *selection) alongside(n int) (waypoint string) {
	token := path.Token(1<<20 + n)
	s.port++
	local := netip.AddrPortFrom(ip("me"), s.port)
	for _, a := range s.m.Handle(path.ConnEstablished{Token: token, Local: local, Remote: netip.AddrPortFrom(serverIn(n), 80)}, s.now) {
		if a, ok := a.(path.CreateSubflow); ok && a.Token == token {
			waypoint = a.Waypoint
		}
	}
	s.m.Handle(path.ConnClosed{Token: token}, s.now)
	return waypoint
}

// traffic plays a connection of 12 seconds, long enough to find out that a detour is silent.
func (s *selection) traffic(kind string) {
	switch kind {
	case "bulk":
		s.bulk(12 * time.Second)
	case "upload":
		for end := s.now.Add(12 * time.Second); s.now.Before(end); s.step() {
			for _, c := range s.uses() {
				if !s.paths[c.waypoint].dead {
					c.acked, c.segments, c.lastAnswer = c.acked+70_000, c.segments+25, s.now.Add(dt)
				}
			}
		}
	default:
		s.messages(12*time.Second, 2*dt)
	}
}

// candidate explains whether a new connection to the present server would take a waypoint.
func (s *selection) candidate(waypoint string) *path.Candidate {
	s.t.Helper()
	all := s.m.Explain(netip.AddrPortFrom(s.server, 80), netip.Addr{}, s.now).Candidates
	i := slices.IndexFunc(all, func(c path.Candidate) bool { return c.Waypoint == waypoint })
	if i < 0 {
		s.t.Fatalf("%s is no candidate: %+v", waypoint, all)
	}
	return &all[i]
}

// A waypoint with perfect measurements, which others praise, forwards nothing. Few connections take it, although each is
// to a server in another network. The others take a good one. Once it forwards, it is used again.
func TestBlackHoleTowardsNewServers(t *testing.T) {
	for _, kind := range []string{"bulk", "messages"} {
		t.Run(kind, func(t *testing.T) {
			s := newPerfect(t)
			s.paths["bob"].dead = true
			taken, first := 0, 0
			for n := range 120 { // one a minute
				s.connectTo(n)
				if s.over("bob") != nil {
					taken++
				} else if first == 0 {
					first = n
				}
				s.traffic(kind)
				if c := s.over("carol"); c == nil || s.over("bob") != nil {
					t.Fatalf("connection %d does not use carol: %v", n, s.log)
				}
				s.log = nil
				s.pause(48 * time.Second)
			}
			t.Logf("%d of 120 connections took it; connection %d was the first that did not", taken, first)
			if first == 0 || first > 3 || taken > 9 {
				t.Errorf("%d of 120 connections took it; connection %d was the first that did not", taken, first)
			}
			if c := s.candidate("bob"); c.Taken || !strings.Contains(c.Why(), "nothing arrived through it from servers in several networks") {
				t.Errorf("bob: %q, %q", c.Reason.Code(), c.Why())
			}
			s.paths["bob"].dead = false
			for n := 1000; s.over("bob") == nil; n++ {
				if n > 1061 {
					t.Fatal("an hour later, it is not used again")
				}
				s.connectTo(n)
				s.traffic(kind)
				s.pause(48 * time.Second)
			}
			for n := range 10 {
				if s.connectTo(2000 + n); s.over("bob") == nil {
					t.Errorf("it forwards, and is not used: %q", s.candidate("bob").Why())
				}
			}
		})
	}
}

// Servers that drop what comes through waypoints do not get a good waypoint suspended while others get data through it.
// If there are no others for long, it is suspended, but not towards networks where data lately got through it.
func TestServersCannotSuspendAWaypoint(t *testing.T) {
	for _, kind := range []string{"bulk", "upload", "messages"} {
		t.Run(kind, func(t *testing.T) {
			s := newPerfect(t)
			visit := func(n int, bad bool) {
				s.connectTo(n)
				s.paths["bob"].dead, s.paths["carol"].dead = bad, bad
				if s.over("bob") == nil && !bad {
					t.Fatalf("server %d is not reached through bob: %q", n, s.candidate("bob").Why())
				}
				if bad {
					s.traffic("bulk")
				} else {
					s.traffic(kind)
				}
			}
			for n := range 40 {
				visit(n, n%4 > 0)
			}
			for n := range 40 {
				visit(100+n, true)
			}
			if c := s.candidate("bob"); c.Taken {
				t.Fatalf("it is not suspended: %q", c.Why()) // else the rest tests nothing
			}
			visit(0, false)
			visit(200, false)
		})
	}
}

// A waypoint that was good, and then forwards nothing, is soon left by connections to servers that it served well, too.
func TestBlackHoleThatWasGood(t *testing.T) {
	s := newPerfect(t)
	taken := 0
	for round := range 2 {
		s.paths["bob"].dead = round > 0
		taken = 0
		for n := range 20 {
			if s.connectTo(n); s.over("bob") != nil {
				taken++
			}
			s.traffic("bulk")
		}
		if round == 0 && taken < 20 {
			t.Fatalf("when it is good, %d of 20 connections take it", taken) // else the rest tests nothing
		}
	}
	if taken > 7 {
		t.Errorf("%d of 20 connections took it", taken)
	}
}

// An outage in which no detour works does not suspend the waypoints for all servers, whether the direct path works or not,
// however many servers were affected.
func TestOutageSuspendsNoWaypoint(t *testing.T) {
	for name, direct := range map[string]bool{"direct path works": true, "no path works": false} {
		t.Run(name, func(t *testing.T) {
			s := newPerfect(t)
			servers := 3 // more take longer than a short outage
			if !direct {
				servers = 20
			}
			for n := range servers {
				s.paths[""].dead, s.paths["bob"].dead, s.paths["carol"].dead = !direct, true, true
				s.connectTo(n)
				s.bulk(11 * time.Second)
				if direct && s.over("bob") != nil {
					t.Fatalf("its silence was not found out: %v", s.log)
				}
			}
			s.paths[""].dead, s.paths["bob"].dead, s.paths["carol"].dead = false, false, false
			if s.connectTo(100); s.over("bob") == nil {
				t.Errorf("afterwards: %q", s.candidate("bob").Why())
			}
		})
	}
}

// If no waypoint forwards anything, connections to ever new servers leave the direct path as it is, and hardly try any.
func TestAllWaypointsAreBlackHoles(t *testing.T) {
	s := newPerfect(t)
	s.paths["bob"].dead, s.paths["carol"].dead = true, true
	joins := 0
	for n := range 60 {
		s.connectTo(n)
		s.bulk(12 * time.Second)
		if s.over("").backup || slices.ContainsFunc(s.log, func(line string) bool { return strings.Contains(line, "direct") }) {
			t.Fatalf("the direct path is not left as it is: %v", s.log)
		}
		if n >= 30 {
			joins += strings.Count(strings.Join(s.log, ";"), "join")
		}
		s.log = nil
		s.pause(48 * time.Second)
	}
	t.Logf("in the second half hour, 30 connections made %d joins", joins)
	if joins > 10 {
		t.Errorf("in the second half hour, 30 connections made %d joins", joins)
	}
}

// silenced returns a busy connection whose only waypoint has long been silent towards its server and is suspended.
func silenced(t *testing.T) *selection {
	t.Helper()
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": {trip: 40 * time.Millisecond, rate: 800, dead: true}})
	s.offer("bob")
	s.connect()
	s.bulk(90 * time.Minute)
	for s.over("bob") != nil {
		s.bulk(time.Second)
	}
	s.bulk(40 * time.Second)
	s.log = nil
	if s.over("bob") != nil || s.candidate("bob").Until.Sub(s.now) < 50*time.Minute {
		t.Fatalf("bob is not suspended for an hour: %q until %v", s.candidate("bob").Why(), s.candidate("bob").Until.Sub(s.now))
	}
	return s
}

// A connection whose direct path dies soon tries a waypoint that was silent for long. This does not count as exploring. A
// connection with a path that works does not try it.
func TestLastResortWithoutAPathThatWorks(t *testing.T) {
	for name, dies := range map[string]bool{"direct path dies": true, "direct path works": false} {
		t.Run(name, func(t *testing.T) {
			s := silenced(t)
			s.paths["bob"].dead = false
			tries := s.m.Snapshot(s.now).Exploring.Tries
			if dies {
				s.paths[""].dead, s.over("").backoff = true, 3
			}
			s.bulk(35 * time.Second)
			if bob := s.over("bob"); dies != (bob != nil && bob.data > 0) {
				t.Errorf("%v", s.log)
			}
			if now := s.m.Snapshot(s.now).Exploring.Tries; now > tries {
				t.Errorf("%d tries count as exploring", now-tries)
			}
		})
	}
}

// Joins to silent waypoints count as exploring. When no more may be explored in this hour, there are none.
func TestLastResortsAreExploring(t *testing.T) {
	for name, spent := range map[string]bool{"tries are left": false, "all tries are used up": true} {
		t.Run(name, func(t *testing.T) {
			s := newSelection(t, map[string]*pathWorth{"": good(), "bob": {trip: 40 * time.Millisecond, rate: 800, dead: true}})
			s.offer("bob")
			tries := func() int { return s.m.Snapshot(s.now).Exploring.Tries }
			for spent && tries() < path.MostTries {
				s.connect() // one in 16 explores
			}
			s.connect()
			s.bulk(12 * time.Second)
			s.log = nil
			before := tries()
			s.bulk(30 * time.Second)
			joins := strings.Count(strings.Join(s.log, ";"), "join bob")
			if spent != (joins == 0) || tries()-before != joins {
				t.Errorf("%d joins, %d tries: %v", joins, tries()-before, s.log)
			}
			if spent {
				s.bulk(path.ExploreEvery)
				if len(s.log) == 0 {
					t.Error("an hour later it is not tried again")
				}
			}
		})
	}
}

// A waypoint is found out, too, if it answers no joins, or if this host sends and nothing is acknowledged.
func TestKindsOfBlackHoles(t *testing.T) {
	for name, deaf := range map[string]bool{"joins are not answered": true, "data is not acknowledged": false} {
		t.Run(name, func(t *testing.T) {
			s := newTunnelled(t)
			s.paths["bob"].dead, s.paths["bob"].deaf = true, deaf
			for n := range 4 {
				s.connectTo(n)
				if len(s.log) == 0 || !strings.HasSuffix(s.log[len(s.log)-1], "bob") {
					t.Fatalf("connection %d does not take it: %v", n, s.log)
				}
				s.bulk(4 * time.Second)
				if bob := s.over("bob"); bob != nil {
					bob.backoff = 5
				}
				s.bulk(8 * time.Second)
			}
			if s.connectTo(100); s.over("carol") == nil {
				t.Errorf("it is taken again: %v", s.log)
			}
		})
	}
}

// While a waypoint's session is down, its silence shows nothing more.
func TestSilenceOfALostWaypoint(t *testing.T) {
	s := newTunnelled(t)
	s.paths["bob"].dead = true
	s.tell(path.WaypointLost{Waypoint: "bob", Addr: ip("bob")})
	for n := range 10 {
		s.connectTo(n)
		if s.over("bob") == nil {
			t.Fatalf("connection %d does not take it: %v", n, s.log) // else the rest tests nothing
		}
		s.bulk(12 * time.Second)
	}
	s.paths["bob"].dead = false
	s.tell(path.WaypointReady{Waypoint: "bob", Addr: ip("bob")})
	if s.connectTo(100); s.over("bob") == nil {
		t.Errorf("after its return: %q", s.candidate("bob").Why())
	}
}

// When one kind of detour is known to be silent towards all servers, a single server is enough for another kind.
func TestEachKindOfABlackHole(t *testing.T) {
	s := newTunnelled(t)
	s.offer("bob")
	s.paths["bob"].dead = true
	taken := 0
	for n := range 20 {
		if s.connectTo(n); s.over("bob") != nil {
			taken++
		}
		s.bulk(12 * time.Second)
		if n == 5 && (taken != 5 || s.over("bob") != nil) {
			t.Errorf("of the first six connections, %d took it: %v", taken, s.log)
		}
	}
}

// After a suspension, one connection tries the waypoint. The others wait for what that shows.
func TestOneConnectionTriesABlackHole(t *testing.T) {
	s := newPerfect(t)
	s.paths["bob"].dead = true
	for n := range 4 {
		s.connectTo(n)
		s.traffic("bulk")
	}
	for s.server = serverIn(100); !s.candidate("bob").Taken; {
		s.bulk(time.Second)
	}
	if s.connectTo(100); s.over("bob") == nil || s.alongside(201) != "carol" {
		t.Errorf("a connection tries it, and another takes it, too: %v", s.log)
	}
	s.paths["bob"].dead = false
	s.bulk(time.Second)
	if s.alongside(202) != "bob" {
		t.Errorf("data got through, and it is not used: %q", s.candidate("bob").Why())
	}
}

// When data gets through a waypoint again, connections that lack a detour take it at once.
func TestEndOfASuspensionIsTold(t *testing.T) {
	s := silenced(t)
	s.bulk(time.Second)
	// Another connection has no path that works, so it takes bob.
	const other = path.Token(1 << 20)
	local, server := netip.AddrPortFrom(ip("me"), 4000), netip.AddrPortFrom(s.server, 80)
	s.tell(path.ConnEstablished{Token: other, Local: local, Remote: server})
	s.tell(path.Measured{Samples: []path.Sample{{Token: other, Local: local, Remote: server, Backoff: 3}}})
	for range 20 {
		s.step()
	}
	s.want("without a path that works", "join bob")
	bob := s.over("bob")
	s.subflows = slices.DeleteFunc(s.subflows, func(c *carried) bool { return c == bob }) // the selection plays the first connection
	s.bulk(2 * time.Second)
	s.want("before data gets through")
	s.tell(path.Measured{Samples: []path.Sample{{Token: other, Local: bob.local, Remote: bob.remote, BytesReceived: 1000, MinRTT: rtt}}})
	s.want("afterwards", "join bob")
}

// A connection that was idle when a silent waypoint could be tried again tries it as soon as it is busy.
func TestIdleConnectionTriesNoSilentWaypoint(t *testing.T) {
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": {trip: 40 * time.Millisecond, rate: 800, dead: true}})
	s.offer("bob")
	s.connect()
	for strings.Count(strings.Join(s.log, ";"), "end bob") < 6 {
		s.bulk(time.Second)
	}
	s.log = nil
	s.pause(5 * time.Minute)
	s.want("while it is idle")
	s.bulk(time.Second)
	s.want("when it is busy", "join bob")
}

// An uplink that was out of reach for long is used again within minutes, because radio links come and go.
func TestSilentUplinkIsUsedAgain(t *testing.T) {
	s := newSelectionWith(t, map[string]*pathWorth{"": good(), "wwan0": good()}, func(c *path.Config) { c.Policy = policy.Mesh{} })
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me"), ip("me2")}})
	s.tell(path.DetourOffered{Detour: path.Detour{ID: "w", Kind: path.Uplink, Waypoint: "wwan0", Local: ip("me2")}})
	s.connect()
	s.paths["wwan0"].dead = true
	s.bulk(4 * time.Hour)
	s.paths["wwan0"].dead = false
	s.bulk(6 * time.Minute)
	if c := s.over("wwan0"); c == nil || c.data == 0 {
		t.Errorf("it is not used: %v", s.log[max(0, len(s.log)-10):])
	}
}

// On another network, the path to the waypoint is another, so it is not suspended for its silence any more.
func TestBlackHoleOnAnotherNetwork(t *testing.T) {
	s := newPerfect(t)
	s.paths["bob"].dead = true
	for n := range 4 {
		s.connectTo(n)
		s.traffic("bulk")
	}
	s.server = serverIn(100)
	if c := s.candidate("bob"); c.Taken {
		t.Fatalf("it is not suspended: %q", c.Why()) // else the rest tests nothing
	}
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me2")}})
	s.praise()
	if c := s.candidate("bob"); !c.Taken {
		t.Errorf("it is still suspended: %q", c.Why())
	}
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
	s.praise()
	s.connectTo(5)
	s.traffic("bulk")
	s.server = serverIn(100)
	if c := s.candidate("bob"); !c.Taken {
		t.Errorf("one silence is enough: %q", c.Why())
	}
}
