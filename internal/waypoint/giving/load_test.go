package giving

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestLoad(t *testing.T) {
	busy := Usage{Members: 3, Rate: 95, Limit: 100}
	for _, c := range []struct {
		name   string
		usage  func(second int) Usage
		loaded []bool // every two seconds
	}{
		{"busy", func(int) Usage { return busy }, []bool{false, true, true, true, true, true}},
		{"processor", func(int) Usage { return Usage{Members: 2, Processor: 0.95} }, []bool{false, true, true, true}},
		{"one member", func(int) Usage { return Usage{Members: 1, Rate: 100, Limit: 100} }, []bool{false, false, false, false, false}},
		{"no limit", func(int) Usage { return Usage{Members: 9, Rate: 1e9} }, []bool{false, false, false, false}},
		{"bursts", func(s int) Usage {
			if s%4 == 0 {
				return busy
			}
			return Usage{Members: 3, Rate: 10, Limit: 100}
		}, []bool{false, false, false, false, false, false, false}},
		{"a little less", func(s int) Usage {
			if s > 4 {
				return Usage{Members: 3, Rate: 87, Limit: 100}
			}
			return busy
		}, []bool{false, true, true, true, true, true, true, true, true, true}},
		{"over", func(s int) Usage {
			if s > 4 {
				return Usage{Members: 3, Rate: 50, Limit: 100}
			}
			return busy
		}, []bool{false, true, true, true, false, false, false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l Load
			start := time.Unix(1e9, 0)
			for i, want := range c.loaded {
				now := start.Add(time.Duration(2*i) * time.Second)
				if until := l.Take(c.usage(2*i), now); until.After(now) != want || !want && !until.IsZero() {
					t.Fatalf("after %d s: loaded until %v, want %v", 2*i, until.Sub(now), want)
				}
			}
		})
	}
}

// One more member gets what is left, or an equal share of what the waypoint can do, by its operator's limit or by its processors.
func TestGives(t *testing.T) {
	for _, c := range []struct {
		usage Usage
		want  float64
	}{
		{Usage{Members: 3, Rate: 100, Limit: 100}, 25},
		{Usage{Members: 3, Rate: 90, Limit: 100}, 25},
		{Usage{Members: 9, Rate: 80, Limit: 100}, 20},
		{Usage{Members: 1, Rate: 90, Processor: 0.9}, 50},
		{Usage{Members: 1, Rate: 90, Limit: 300, Processor: 0.9}, 50},
		{Usage{Limit: 100}, 0},
		{Usage{Members: 2, Rate: 10}, 0},
	} {
		if got := c.usage.Gives(); got < c.want-1e-9 || got > c.want+1e-9 {
			t.Errorf("%+v gives %v, want %v", c.usage, got, c.want)
		}
	}
}

// A waypoint is full where nearly all that it can do is used, by however many.
func TestFull(t *testing.T) {
	for u, want := range map[Usage]bool{
		{Members: 1, Rate: 95, Limit: 100}: true, {Members: 1, Rate: 80, Limit: 100}: false, {Members: 1, Rate: 95}: false,
		{Members: 1, Rate: 1, Limit: 100, Processor: 0.95}: true, {}: false,
	} {
		if u.Full() != want {
			t.Errorf("%+v is full: %v", u, u.Full())
		}
	}
}

// Whatever happens, also to the clock, a waypoint is never loaded for longer than LoadedFor, and ceases to be when
// nobody uses it.
func TestLoadEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Load
		now := time.Unix(1e9, 0)
		for range rapid.IntRange(0, 60).Draw(t, "looks") {
			now = now.Add(time.Duration(rapid.IntRange(-100, 3000).Draw(t, "ms")) * time.Millisecond)
			if rapid.IntRange(0, 20).Draw(t, "clock") == 0 {
				now = now.Add(time.Duration(rapid.IntRange(-3600, 3600).Draw(t, "s")) * time.Second)
			}
			until := l.Take(Usage{
				Members: rapid.IntRange(0, 3).Draw(t, "members"), Rate: rapid.Float64Range(0, 2).Draw(t, "rate"), Limit: 1,
				Processor: rapid.Float64Range(0, 1).Draw(t, "processor"),
			}, now)
			if until.Sub(now) > LoadedFor {
				t.Fatalf("loaded for %v", until.Sub(now))
			}
		}
		for range 6 {
			now = now.Add(time.Second)
			l.Take(Usage{}, now)
		}
		if until := l.Take(Usage{}, now); !until.IsZero() {
			t.Fatalf("nobody uses it, and it is loaded until %v", until)
		}
	})
}
