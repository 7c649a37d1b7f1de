package path_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// known begins a connection over bob. Carol is measured but off offer.
func known(t *testing.T, direct, bob, carol *pathWorth) *selection {
	t.Helper()
	s := newSelection(t, map[string]*pathWorth{"": direct, "bob": bob, "carol": carol})
	s.offer("carol")
	s.connect()
	s.messages(10*time.Second, 100*time.Millisecond)
	s.tell(path.DetourWithdrawn{ID: "carol"})
	s.offer("bob")
	s.connect()
	s.messages(10*time.Second, 100*time.Millisecond)
	s.log = nil
	return s
}

func at(trip time.Duration) *pathWorth { return &pathWorth{trip: trip, rate: 800} }

// A connection with messages exchanges its detour for one that is much better and became known later.
func TestSlowerDetourIsExchanged(t *testing.T) {
	s := known(t, at(120*time.Millisecond), at(100*time.Millisecond), at(30*time.Millisecond))
	s.offer("carol")
	s.messages(9*time.Second, 100*time.Millisecond)
	s.want("at first")
	s.messages(51*time.Second, 100*time.Millisecond)
	if s.over("carol") == nil || s.over("bob") != nil {
		t.Errorf("after a minute: %v", s.log)
	}
	if why := s.why("carol"); why == "" {
		t.Error("carol was taken without a reason")
	}
	s.log = nil
	s.messages(10*time.Minute, 100*time.Millisecond)
	for _, line := range s.log {
		t.Errorf("afterwards: %s", line)
	}
}

// A waypoint that is only a little better, or worse than the direct path, does not replace the detour.
func TestGoodEnoughDetourStays(t *testing.T) {
	for name, c := range map[string]struct {
		direct, bob, carol time.Duration
	}{
		"a little better":             {direct: 120 * time.Millisecond, bob: 45 * time.Millisecond, carol: 35 * time.Millisecond},
		"a few milliseconds":          {direct: 40 * time.Millisecond, bob: 12 * time.Millisecond, carol: 3 * time.Millisecond},
		"longer than the direct path": {direct: 20 * time.Millisecond, bob: 100 * time.Millisecond, carol: 40 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			s := known(t, at(c.direct), at(c.bob), at(c.carol))
			s.offer("carol")
			s.messages(3*time.Minute, 100*time.Millisecond)
			if s.over("carol") != nil {
				t.Errorf("%v", s.log)
			}
		})
	}
}

// On random networks with losses of up to half a percent, waypoints with about the same round trips are rarely
// exchanged for each other. A few are, because losses are estimated from few packets.
func TestFalseExchanges(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	const most = 3
	tried, needless, missed := networks(60), 0, 0
	for range tried {
		trip := time.Duration(10+random.IntN(100)) * time.Millisecond
		about := func() *pathWorth {
			return &pathWorth{trip: time.Duration(float64(trip) * (0.9 + 0.2*random.Float64())), rate: 800, loss: 0.005 * random.Float64()}
		}
		direct := &pathWorth{trip: 3 * trip, rate: 800}
		s := known(t, direct, about(), about())
		s.offer("carol")
		s.messages(3*time.Minute, 100*time.Millisecond)
		if s.over("carol") != nil {
			needless++
		}
		bob, carol := about(), about()
		bob.trip = 2*bob.trip + 40*time.Millisecond
		direct.trip = 2 * bob.trip
		s = known(t, direct, bob, carol)
		s.offer("carol")
		s.messages(3*time.Minute, 100*time.Millisecond)
		if s.over("carol") == nil {
			missed++
		}
	}
	t.Logf("of %d networks each: %d exchanged for nothing, %d not exchanged although much slower", tried, needless, missed)
	if needless > most || missed > most {
		t.Errorf("%d false, %d missed", needless, missed)
	}
}

// Messages leave a waypoint in whose queue they wait behind this host's own bulk traffic, if another one is idle. New
// connections with messages begin with that one.
func TestMessagesAvoidOwnQueue(t *testing.T) {
	for i := range networks(8) {
		ways := map[string]*way{
			"":     wayOf(90*time.Millisecond, queued(3, 50*time.Millisecond)),
			"good": wayOf(25*time.Millisecond, queued(16, 250*time.Millisecond)),
			"idle": wayOf(60*time.Millisecond, queued(2, 1600*time.Millisecond)),
		}
		f := newFluid(t, i, ways, func(c *path.Config) { c.Policy, c.MessagePorts = policy.Detours{Subflows: 2}, []uint16{81} })
		for _, w := range []string{"idle", "good"} { // measures them without a queue
			f.offer(w)
			d := f.connect(100e3)
			f.run(10 * time.Second)
			f.close(d)
			f.withdraw(w)
		}
		f.offer("idle", "good")
		f.run(time.Second)
		messages := netip.AddrPortFrom(ip("web"), 81)
		first := f.connectTo(messages, 400e3)
		f.run(10 * time.Second)
		if first.over("good") == nil {
			t.Fatalf("%d: messages begin with %v", i, first.log)
		}
		bulk := f.connect(0)
		f.run(20 * time.Second)
		if bulk.over("good") == nil {
			t.Fatalf("%d: bulk traffic does not use the better waypoint: %v", i, bulk.log)
		}
		second := f.connectTo(messages, 400e3)
		f.run(time.Second)
		for name, d := range map[string]*transfer{"first": first, "second": second} {
			if d.over("idle") == nil {
				t.Errorf("%d: the %s connection waits: %v", i, name, d.log)
			}
		}
	}
}
