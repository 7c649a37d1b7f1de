package path_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// crossing plays a host with a bulk connection and others with messages, on the direct path and through bob, in virtual
// time. While bulk traffic has no bound on a path, the path has this queue.
type crossing struct {
	t        *testing.T
	m        *path.Manager
	start    time.Time
	now      time.Time
	subflows [3][]path.Ends // of the bulk connection, and of the others
	counts   map[path.Ends]*path.Sample
	bounds   map[path.Ends]float64
	begun    int
	lowest   float64 // bound so far; 0: there was none
	queue    time.Duration
	ecn      bool
	others   bool // others cause the queue
	apart    bool // messages do not pass through the queue
	silent   bool // no messages
	listens  bool // this host receives messages and sends none
	blind    bool // a receiver measures no round trips
}

func newCrossing(t *testing.T) *crossing {
	t.Helper()
	c := newBulk(t)
	c.connect(1, "web")
	return c
}

// newBulk is newCrossing without the connection with messages.
func newBulk(t *testing.T) *crossing {
	t.Helper()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := &crossing{
		t: t, start: start, now: start, queue: 60 * time.Millisecond, ecn: true,
		m: path.New(path.Config{
			Policy: policy.Detours{Subflows: 2}, ByWorth: true, Seed: 1, BulkPorts: []uint16{80}, MessagePorts: []uint16{81},
		}),
		counts: make(map[path.Ends]*path.Sample), bounds: make(map[path.Ends]float64),
	}
	c.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
	c.tell(path.DetourOffered{Detour: path.Detour{ID: "bob", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(ip("bob"), 0)}})
	c.connect(0, "web")
	return c
}

// connect begins the bulk connection, 0, or another, 1 or 2.
func (c *crossing) connect(i int, server string) {
	first := path.Ends{Local: netip.AddrPortFrom(ip("me"), 5000+uint16(i)), Remote: netip.AddrPortFrom(ip(server), 80+uint16(min(i, 1)))}
	c.subflows[i] = []path.Ends{first}
	c.tell(path.ConnEstablished{Token: path.Token(i + 1), Local: first.Local, Remote: first.Remote})
}

// close ends a connection.
func (c *crossing) close(i int) {
	c.subflows[i] = nil
	c.tell(path.ConnClosed{Token: path.Token(i + 1)})
}

// runUntilBound lets time pass until there are bounds.
func (c *crossing) runUntilBound() {
	c.t.Helper()
	for range 200 {
		if c.run(dt); len(c.bounds) > 0 {
			return
		}
	}
	c.t.Fatal("no bound")
}

func (c *crossing) tell(ev path.Event) {
	var follow []path.Event
	for _, a := range c.m.Handle(ev, c.now) {
		switch a := a.(type) {
		case path.CreateSubflow:
			ends := path.Ends{Local: netip.AddrPortFrom(ip("me"), 6000+uint16(a.Token)), Remote: a.Remote}
			c.subflows[a.Token-1] = append(c.subflows[a.Token-1], ends)
			follow = append(follow, path.SubflowRequested{Token: a.Token, LocalID: a.LocalID, Local: ends.Local},
				path.SubflowEstablished{Token: a.Token, LocalID: a.LocalID, Local: ends.Local, Remote: ends.Remote})
		case path.Bound:
			if a.Rate == 0 {
				delete(c.bounds, a.Ends)
				continue
			}
			if c.bounds[a.Ends] == 0 {
				c.begun++
			}
			c.bounds[a.Ends] = a.Rate
			if c.lowest == 0 || a.Rate < c.lowest {
				c.lowest = a.Rate
			}
		}
	}
	for _, ev := range follow {
		c.tell(ev)
	}
}

const crossingRate = 10e6 // bits of payload a second of bulk traffic on each path without a bound

// run lets time pass.
func (c *crossing) run(long time.Duration) {
	for end := c.now.Add(long); c.now.Before(end); c.now = c.now.Add(dt) {
		var ev path.Measured
		for i, subflows := range c.subflows {
			for j, ends := range subflows {
				sample := c.counts[ends]
				if sample == nil {
					sample = &path.Sample{Token: path.Token(i + 1), Local: ends.Local, Remote: ends.Remote}
					c.counts[ends] = sample
				}
				sample.ECN, sample.RTT = c.ecn, 40*time.Millisecond
				bound := c.bounds[c.subflows[0][min(j, len(c.subflows[0])-1)]]
				if c.now.After(c.start) && (i == 0 || !c.apart) && (bound == 0 || c.others || bound > crossingRate*1.5) {
					sample.RTT += c.queue
				}
				if sample.MinRTT == 0 || sample.RTT < sample.MinRTT {
					sample.MinRTT = sample.RTT
				}
				if i == 0 && !c.blind {
					sample.ReceiverRTT = sample.RTT
				}
				switch {
				case i == 0:
					rate := float64(crossingRate)
					if bound > 0 {
						rate = min(rate, bound*1400/1500)
					}
					sample.BytesReceived += uint64(rate / 8 * dt.Seconds())
					sample.DataSegsIn += uint64(rate / 8 / 1400 * dt.Seconds())
				case !c.silent:
					sample.BytesReceived += 500
					sample.DataSegsIn++
					if !c.listens {
						sample.BytesAcked += 500
					}
				}
				sample.SegsIn = sample.DataSegsIn
				ev.Samples = append(ev.Samples, *sample)
			}
			if i == 0 || !c.silent {
				ev.Progress = append(ev.Progress, path.Progress{Token: path.Token(i + 1), Received: uint64(c.now.UnixNano())})
			}
		}
		c.tell(ev)
		if at, ok := c.m.Next(); ok && !at.After(c.now) {
			c.tell(path.Tick{})
		}
	}
}

// Bulk traffic is bounded a little where messages wait in its queue, as long as there are messages.
func TestBulkGivesWayToMessages(t *testing.T) {
	c := newCrossing(t)
	c.run(3 * time.Second)
	if len(c.bounds) > 0 {
		t.Errorf("bounded after 3 s: %v", c.bounds)
	}
	c.run(17 * time.Second)
	if len(c.bounds) == 0 {
		t.Fatal("messages wait for 20 s")
	}
	for ends, rate := range c.bounds {
		if rate < 0.8*crossingRate || rate > 1.2*crossingRate {
			t.Errorf("%v is bounded to %.0f bit/s", ends, rate)
		}
	}
	why := ""
	for _, conn := range c.m.Snapshot(c.now).Conns {
		for _, s := range conn.Subflows {
			why += s.Why + "\n"
		}
	}
	if !strings.Contains(why, "because messages wait in its queue") {
		t.Errorf("why: %s", why)
	}
	c.silent = true
	c.run(30 * time.Second)
	if len(c.bounds) > 0 {
		t.Errorf("bounded without messages: %v", c.bounds)
	}
}

// No bound is set if it would lose packets, if the queue is short, or if others cause the queue. The last is tested
// again from time to time.
func TestBulkIsNotBoundedInVain(t *testing.T) {
	for name, change := range map[string]func(*crossing){
		"no ECN":        func(c *crossing) { c.ecn = false },
		"a short queue": func(c *crossing) { c.queue = 8 * time.Millisecond },
		"no messages":   func(c *crossing) { c.silent = true },
	} {
		c := newCrossing(t)
		change(c)
		c.run(time.Minute)
		if c.begun > 0 {
			t.Errorf("%s: %d bounds", name, c.begun)
		}
	}
	c := newCrossing(t)
	c.others = true
	c.run(30 * time.Minute)
	if c.begun == 0 || c.begun > 2*6 {
		t.Errorf("in vain %d times in half an hour", c.begun)
	}
	c.run(time.Minute)
	if len(c.bounds) > 0 {
		t.Errorf("still bounded: %v", c.bounds)
	}
}

// A bound ends with its subflow, and with the connection.
func TestBoundEndsWithItsConnection(t *testing.T) {
	c := newCrossing(t)
	c.run(20 * time.Second)
	if len(c.bounds) == 0 {
		t.Fatal("no bound")
	}
	c.tell(path.ConnClosed{Token: 1})
	for range 20 {
		c.now = c.now.Add(dt)
		c.tell(path.Measured{})
	}
	if len(c.bounds) > 0 {
		t.Errorf("left: %v", c.bounds)
	}
}

// Bulk traffic also gives way to messages that began during it, and have seen no round trip without the queue. Towards the bulk
// traffic's server, the history knows one. Towards others, the bulk traffic's own queue counts.
func TestBulkGivesWayToLaterMessages(t *testing.T) {
	for server, blind := range map[string]bool{"web": true, "far": false} {
		t.Run(server, func(t *testing.T) {
			c := newBulk(t)
			c.blind = blind
			c.run(20 * time.Second)
			c.connect(1, server)
			c.run(20 * time.Second)
			if len(c.bounds) == 0 {
				t.Fatal("messages wait for 20 s")
			}
			begun := c.begun
			c.run(5 * time.Minute)
			if len(c.bounds) == 0 || c.begun > begun {
				t.Errorf("later: %d bounds, %d begun, after %d", len(c.bounds), c.begun, begun)
			}
			for ends, rate := range c.bounds {
				if rate < 0.8*crossingRate {
					t.Errorf("%v is bounded to %.0f bit/s", ends, rate)
				}
			}
		})
	}
}

// If the bulk traffic waits in a queue elsewhere, bounds end and are tried rarely.
func TestBulkThatWaitsElsewhereIsNotBounded(t *testing.T) {
	c := newBulk(t)
	c.apart, c.queue = true, 30*time.Millisecond
	c.run(20 * time.Second)
	c.connect(1, "far")
	c.run(30 * time.Minute)
	if c.begun == 0 || c.begun > 2*6 {
		t.Errorf("bounded %d times in half an hour", c.begun)
	}
	c.run(time.Minute)
	if len(c.bounds) > 0 {
		t.Errorf("still bounded: %v", c.bounds)
	}
	for name, change := range map[string]func(*crossing){
		"a queue longer than the round trip": func(c *crossing) { c.queue = 60 * time.Millisecond },
		"a round trip that was not measured": func(c *crossing) { c.listens = true },
	} {
		c := newBulk(t)
		c.apart, c.queue = true, 30*time.Millisecond
		change(c)
		c.run(20 * time.Second)
		c.connect(1, "far")
		c.run(time.Minute)
		if c.begun > 0 {
			t.Errorf("%s: bounded %d times", name, c.begun)
		}
	}
}

// A bound also ends if the messages that would have shown its success end, or are no longer timed, and others go on to wait.
func TestBoundThatNothingProvesEnds(t *testing.T) {
	for name, happens := range map[string]func(*crossing){
		"the first ends":  func(c *crossing) { c.runUntilBound(); c.close(1) },
		"the second ends": func(c *crossing) { c.runUntilBound(); c.close(2) },
		"no round trips":  func(c *crossing) { c.run(4 * time.Second); c.listens = true; c.runUntilBound() },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrossing(t)
			c.connect(2, "web")
			c.others = true
			happens(c)
			c.run(10 * time.Second)
			if len(c.bounds) > 0 {
				t.Errorf("still bounded: %v", c.bounds)
			}
		})
	}
}

// A bound that worked outlasts the messages that showed it. It ends if others fill the queue later, and does not fall on and
// on.
func TestBoundEndsInQueueOfOthers(t *testing.T) {
	c := newCrossing(t)
	c.connect(2, "web")
	c.run(20 * time.Second)
	c.close(1)
	c.run(time.Minute)
	if len(c.bounds) == 0 || c.lowest < 0.8*crossingRate {
		t.Fatalf("bounds %v, lowest %.0f bit/s", c.bounds, c.lowest)
	}
	c.others = true
	c.run(30 * time.Second)
	if len(c.bounds) > 0 {
		t.Errorf("still bounded: %v", c.bounds)
	}
	c.run(10 * time.Minute)
	if c.lowest < 0.5*crossingRate {
		t.Errorf("bounded to %.0f bit/s", c.lowest)
	}
}
