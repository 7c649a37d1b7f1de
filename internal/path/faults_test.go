package path_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// exchanges lets this host send requests, each a pause after the last answer, and returns the mean time of an answer.
// Answers are full packets, which a path may delay. A request without an answer is answered on another path.
func (s *selection) exchanges(long, pause time.Duration) time.Duration {
	var sum time.Duration
	n := 0
	for end := s.now.Add(long); s.now.Before(end); {
		asked := s.now.Add(time.Duration(s.random.IntN(100)) * time.Millisecond)
		c := s.uses()[s.random.IntN(len(s.uses()))]
		w := s.paths[c.waypoint]
		c.lastSent = asked
		came := asked.Add(w.trip + w.large)
		for came.Sub(s.now) > dt {
			s.step()
		}
		s.arrive(c, 3)
		if c.lastData.Equal(s.now.Add(dt)) {
			c.lastData, c.lastAnswer = came, came
			c.acked += 200
			c.rtt, c.least = w.trip, min(c.least, w.trip)
			sum, n = sum+came.Sub(asked), n+1
		}
		for next := came.Add(pause); s.now.Before(next); {
			s.step()
		}
	}
	return sum / time.Duration(max(n, 1))
}

// A waypoint that is fast for small packets and slow for large ones looks near in every test with small packets: its
// session, the handshake, the acknowledgements of requests. The answers show that it is not.
func TestDelaysOfLargePackets(t *testing.T) {
	for name, c := range map[string]struct {
		large time.Duration
		keeps string // the path that carries afterwards
	}{
		"none": {0, "bob"}, "300 ms": {300 * time.Millisecond, ""}, "2 s": {2 * time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSelection(t, map[string]*pathWorth{
				"": {trip: 60 * time.Millisecond, rate: 800}, "bob": {trip: 20 * time.Millisecond, rate: 800, large: c.large},
			})
			s.offer("bob")
			s.connect()
			s.exchanges(20*time.Second, dt)
			mean := s.exchanges(2*time.Minute, dt)
			t.Logf("answers take %v: %v", mean, s.log)
			if best := s.paths[c.keeps]; mean > (best.trip+best.large)*5/4 {
				t.Errorf("answers take %v: %v", mean, s.log)
			}
		})
	}
}

// Answers over the direct path are late, so messages leave it for a detour that stood by. The last answer over the direct path
// arrives before the first over the detour. That does not make the detour suspect, so the messages do not go back.
func TestDetourThatStoodByIsNotSuspect(t *testing.T) {
	s := newSelection(t, map[string]*pathWorth{
		"": {trip: 30 * time.Millisecond, rate: 800, large: 300 * time.Millisecond}, "bob": {trip: 60 * time.Millisecond, rate: 800},
	})
	s.offer("bob")
	s.connect()
	s.exchanges(20*time.Second, dt)
	if want := []string{"0s join bob", "2s demote bob", "4s promote bob", "4s demote direct"}; !slices.Equal(s.log, want) {
		t.Errorf("want %q, got %q", want, s.log)
	}
}

// Answers over the direct path are late, so messages leave it. They try it again now and then, and return once it is well.
func TestMessagesReturnAfterLateAnswers(t *testing.T) {
	const ms = time.Millisecond
	s := newSelection(t, map[string]*pathWorth{"": {trip: 30 * ms, rate: 800, large: 300 * ms}, "bob": {trip: 60 * ms, rate: 800}})
	s.offer("bob")
	s.connect()
	s.exchanges(20*time.Second, dt)
	if mean := s.exchanges(time.Hour, dt); mean > 65*ms {
		t.Errorf("answers take %v: %v", mean, s.log)
	}
	s.paths[""].large = 0
	s.exchanges(4*time.Minute, dt)
	if mean := s.exchanges(time.Minute, dt); mean > 35*ms {
		t.Errorf("after the direct path is well, answers take %v: %v", mean, s.log)
	}
}

// A server that thinks for long looks the same on every path, so its connections use the nearest path.
func TestServersThatThink(t *testing.T) {
	s := newSelection(t, map[string]*pathWorth{
		"": {trip: 60 * time.Millisecond, rate: 800, large: 300 * time.Millisecond}, "bob": {trip: 20 * time.Millisecond, rate: 800, large: 300 * time.Millisecond},
	})
	s.offer("bob")
	s.connect()
	s.exchanges(30*time.Second, dt)
	s.log = nil
	s.exchanges(10*time.Minute, dt)
	s.want("afterwards")
	if s.over("bob").backup {
		t.Error("the nearest stands by")
	}
}

// A waypoint with perfect measurements, which others praise, forwards nothing once the subflow is up. Connections go
// on over the direct path, and hardly any takes the waypoint again.
func TestPerfectNumbersForwardNothing(t *testing.T) {
	for _, traffic := range []string{"bulk", "messages"} {
		t.Run(traffic, func(t *testing.T) {
			s := newSelection(t, map[string]*pathWorth{"": good(), "bob": {trip: time.Millisecond, rate: 8000, dead: true}, "carol": good()})
			s.offer("bob", "carol")
			s.tell(path.WaypointMeasured{Waypoint: "bob", Addr: ip("bob"), RTT: time.Millisecond, Packets: 1e6})
			s.tell(path.WaypointMeasured{Waypoint: "carol", Addr: ip("carol"), RTT: 15 * time.Millisecond})
			s.tell(path.ClaimsHeard{Claims: []claim.Heard{{Member: "mallory", At: s.now, Claims: []claim.Claim{{Waypoint: "bob", Loss: 1, Goodput: claim.MostGoodput}}}}})
			taken, stood := 0, time.Duration(0)
			for range 60 { // one a minute
				s.connect()
				if s.over("bob") != nil {
					taken++
				}
				had := s.upTo
				for range 10 {
					if traffic == "bulk" {
						s.bulk(time.Second)
					} else {
						s.messages(time.Second, 2*dt)
					}
					if s.upTo == had {
						stood += time.Second
					}
					had = s.upTo
				}
				if end := s.over(""); end == nil || end.backup {
					t.Fatalf("the direct path does not carry: %v", s.log)
				}
				s.pause(50 * time.Second)
			}
			t.Logf("%d of 60 connections took it, and stood still for %v in all", taken, stood)
			if taken == 0 || taken > 12 {
				t.Errorf("%d of 60 connections took it: %v", taken, s.log)
			}
			if stood > time.Duration(taken)*3*time.Second {
				t.Errorf("%d connections stood still for %v", taken, stood)
			}
		})
	}
}

// Messages leave a detour that is good for ten seconds and then bad, again and again. They change less and less
// often.
func TestMessagesOverFlappingDetour(t *testing.T) {
	for name, bad := range map[string]pathWorth{
		"far":   {trip: 400 * time.Millisecond, rate: 800},
		"lossy": {trip: 20 * time.Millisecond, rate: 800, loss: 0.3},
	} {
		t.Run(name, func(t *testing.T) {
			bob := &pathWorth{trip: 20 * time.Millisecond, rate: 800}
			s := newSelection(t, map[string]*pathWorth{"": {trip: 60 * time.Millisecond, rate: 800}, "bob": bob})
			s.offer("bob")
			s.connect()
			s.exchanges(10*time.Second, 2*dt)
			s.log = nil
			turned := 0 // times that bob carried while it was bad, after three seconds
			for range 30 {
				*bob = bad
				s.exchanges(3*time.Second, 2*dt)
				if c := s.over("bob"); c != nil && !c.backup && s.over("").backup {
					turned++
				}
				s.exchanges(7*time.Second, 2*dt)
				*bob = pathWorth{trip: 20 * time.Millisecond, rate: 800}
				s.exchanges(10*time.Second, 2*dt)
			}
			moves := strings.Count(strings.Join(s.log, ";"), "promote bob") + strings.Count(strings.Join(s.log, ";"), "join bob")
			t.Logf("%d moves to it, %d times still there after three seconds: %v", moves, turned, s.log)
			if turned > 3 {
				t.Errorf("%d times it still carried alone three seconds after it turned bad", turned)
			}
			if moves > 15 {
				t.Errorf("in ten minutes the connection went back to it %d times", moves)
			}
		})
	}
}

// If all waypoints are bad from the first packet on, the direct path carries nearly all data.
func TestAllWaypointsBad(t *testing.T) {
	for name, bad := range map[string]pathWorth{
		"lossy": {trip: 40 * time.Millisecond, rate: 800, loss: 0.1},
		"dead":  {trip: 40 * time.Millisecond, rate: 800, dead: true},
		"far":   {trip: 300 * time.Millisecond, rate: 800, loss: 0.05},
	} {
		t.Run(name, func(t *testing.T) {
			bob, carol, dave := bad, bad, bad
			s := newSelection(t, map[string]*pathWorth{"": good(), "bob": &bob, "carol": &carol, "dave": &dave})
			s.offer("bob", "carol", "dave")
			joins := 0
			for n := range 60 {
				s.connect()
				s.bulk(10 * time.Second)
				if s.over("").backup || slices.ContainsFunc(s.log, func(line string) bool { return strings.Contains(line, "direct") }) {
					t.Fatalf("the direct path is not left as it is: %v", s.log)
				}
				if n >= 30 {
					joins += strings.Count(strings.Join(s.log, ";"), "join") - strings.Count(strings.Join(s.log, ";"), "as backup")
				}
				s.log = nil
				s.pause(50 * time.Second)
			}
			t.Logf("in the second half hour, 30 connections took %d detours to carry", joins)
			if joins > 20 { // in ten seconds, a far one shows few packets
				t.Errorf("in the second half hour, 30 connections took %d detours to carry", joins)
			}
		})
	}
}

// If the direct path is bad from the first packet on, the detour carries. Only the direct path is set aside.
func TestDirectBadFromTheBeginning(t *testing.T) {
	for name, direct := range map[string]pathWorth{
		"lossy": {trip: 40 * time.Millisecond, rate: 800, loss: 0.1},
		"far":   {trip: 800 * time.Millisecond, rate: 800},
		"dead":  {trip: 40 * time.Millisecond, rate: 800, dead: true},
	} {
		for _, traffic := range []string{"bulk", "messages"} {
			if name == "far" && traffic == "bulk" {
				continue // bulk traffic gains by it
			}
			t.Run(name+" "+traffic, func(t *testing.T) {
				direct := direct
				s := newSelection(t, map[string]*pathWorth{"": &direct, "bob": good()})
				s.offer("bob")
				for range 5 {
					s.connect()
					run := func(long time.Duration) {
						if traffic == "bulk" {
							s.bulk(long)
						} else {
							s.messages(long, 2*dt)
						}
					}
					run(20 * time.Second)
					had := s.over("bob").data
					run(10 * time.Second)
					bob := s.over("bob")
					if bob == nil || bob.backup || bob.data == had {
						t.Fatalf("the detour does not carry: %v", s.log)
					}
					if !s.over("").backup && !direct.dead {
						t.Errorf("the direct path carries: %v", s.log)
					}
					s.log = nil
				}
			})
		}
	}
}

// A server that takes no subflow beside the first is asked a few times, then hardly again.
func TestServerThatTakesNoSubflow(t *testing.T) {
	for _, waypoints := range [][]string{{"bob"}, {"bob", "carol"}, {"bob", "carol", "dave", "erin"}} {
		t.Run(fmt.Sprint(len(waypoints)), func(t *testing.T) {
			ways := map[string]*way{"": wayOf(40*time.Millisecond, queued(10, 20*time.Millisecond))}
			for _, w := range waypoints {
				ways[w] = wayOf(40*time.Millisecond, queued(10, 20*time.Millisecond))
			}
			f := newFluid(t, 1, ways, nil)
			f.limit = 0
			f.offer(waypoints...)
			first, later := 0, 0
			for n := range 60 {
				d := f.connect(0)
				f.run(5 * time.Second)
				if d.over("").backup || len(d.lanes) != 1 {
					t.Fatalf("%v", d.log)
				}
				if joins := strings.Count(strings.Join(d.log, ";"), "join"); n < 10 {
					first += joins
				} else {
					later += joins
				}
				f.close(d)
				f.now = f.now.Add(25 * time.Second)
			}
			t.Logf("%d joins in the first ten connections, %d in the other fifty", first, later)
			if first > 10 || later > 30 {
				t.Errorf("%d joins in the first ten connections, %d in the other fifty", first, later)
			}
		})
	}
}

// counting is a policy that counts its decisions and the detours that each of them looks at.
type counting struct {
	policy.Policy
	plans, most int
}

func (c *counting) Plan(v policy.View) policy.Plan {
	c.plans++
	c.most = max(c.most, len(v.InUse)+len(v.Usable)+len(v.Resting))
	return c.Policy.Plan(v)
}

// With ten thousand connections to one prefix, the memory of the prefix and the work of a decision are the same as
// with one.
func TestManyConnectionsToOnePrefix(t *testing.T) {
	const connections, waypoints = 10_000, 4
	counted := &counting{Policy: policy.Detours{Subflows: 2}}
	m, now := path.New(path.Config{Policy: counted, ByWorth: true}), birth
	m.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}}, now)
	for _, name := range []string{"bob", "carol", "dave", "erin"} {
		m.Handle(path.DetourOffered{Detour: path.Detour{ID: path.DetourID(name), Kind: path.InBand, Waypoint: name, Remote: netip.AddrPortFrom(addrOf(name), 0)}}, now)
	}
	server := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + i%250)}), uint16(80+i/250))
	}
	begin := func(i int) (plans int) {
		before := counted.plans
		local := netip.AddrPortFrom(ip("me"), uint16(10_000+i))
		for _, a := range slices.Clone(m.Handle(path.ConnEstablished{Token: path.Token(i + 1), Local: local, Remote: server(i)}, now)) {
			if a, ok := a.(path.CreateSubflow); ok {
				own := netip.AddrPortFrom(ip("me"), uint16(30_000+i))
				m.Handle(path.SubflowRequested{Token: a.Token, LocalID: a.LocalID, Local: own}, now)
				m.Handle(path.SubflowEstablished{Token: a.Token, LocalID: a.LocalID, Local: own, Remote: a.Remote}, now)
				// Often enough for the history to learn from it.
				for n := range uint64(25) {
					now = now.Add(100 * time.Millisecond)
					sample := func(local, remote netip.AddrPort) path.Sample {
						return path.Sample{
							Token: a.Token, Local: local, Remote: remote, BytesReceived: 140_000 * (n + 1), MinRTT: 20 * time.Millisecond,
							RTT: 20 * time.Millisecond, SegsIn: 100 * (n + 1), DataSegsIn: 100 * (n + 1), DataEnd: 280_000 * (n + 1),
						}
					}
					m.Handle(path.Measured{
						Samples:  []path.Sample{sample(local, server(i)), sample(own, a.Remote)},
						Progress: []path.Progress{{Token: a.Token, Received: 280_000 * (n + 1)}},
					}, now)
				}
			}
		}
		return counted.plans - before
	}
	for range 8 {
		begin(0)
		m.Handle(path.ConnClosed{Token: 1}, now)
	}
	alone := 0
	for i := range connections {
		plans := begin(i)
		if i == 0 {
			alone = plans
		}
		if plans > 2*alone {
			t.Fatalf("connection %d took %d decisions, the first %d", i, plans, alone)
		}
		for range m.Watched(now, connections) { // as the agent does, which ends close sampling
		}
	}
	if counted.most > 2+waypoints+1 {
		t.Errorf("a decision looked at %d subflows and detours", counted.most)
	}
	if n := len(m.Memory().Trails); n == 0 || n > waypoints+1 {
		t.Errorf("%d trails are remembered of one prefix through %d waypoints", n, waypoints)
	}
	before := counted.plans
	m.Handle(path.Tick{}, now)
	m.Explain(server(0), netip.Addr{}, now)
	if plans := counted.plans - before; plans > 3*alone {
		t.Errorf("a tick and an explanation took %d decisions", plans)
	}
}
