package runner

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// machine is one on which each network takes a part of the processors, and that is
// late when there are more than it bears.
type machine struct {
	each  float64
	bears int
}

func (m machine) run(g *governor) observation {
	o := observation{
		networks: float64(g.level), cpu: math.Min(1, m.each*float64(g.level)), lateness: 0.1, lowered: g.lowered,
	}
	if g.level > m.bears {
		o.lateness = 3
	}
	return o
}

func automatic(level, most int) *governor {
	return &governor{level: level, most: most, ceiling: math.MaxInt}
}

func TestGovernorFindsTheLevel(t *testing.T) {
	for _, test := range []struct {
		name      string
		m         machine
		low, high int // where it ends up
	}{
		{"processors are what is short", machine{each: 0.11, bears: 100}, 7, 7},
		{"fidelity is", machine{each: 0.05, bears: 3}, 3, 4},
		{"nothing is", machine{each: 0.001, bears: 100}, 8, 8},
		{"one is too much", machine{each: 0.95, bears: 0}, 1, 1},
	} {
		g := automatic(1, 8)
		for range 200 {
			g.observe(test.m.run(g))
		}
		if g.level < test.low || g.level > test.high {
			t.Errorf("%s: %d at a time, want %d to %d", test.name, g.level, test.low, test.high)
		}
	}
}

// What was too much is tried again, but seldom.
func TestGovernorIsPatient(t *testing.T) {
	g, m := automatic(1, 8), machine{each: 0.05, bears: 3}
	lost := 0
	for range 400 {
		o := m.run(g)
		if o.lateness > 1 {
			lost++
		}
		g.observe(o)
	}
	if lost == 0 || lost > 400/retryAfter {
		t.Errorf("%d of 400 runs were lost to trying", lost)
	}
}

// A machine that gets busy is given less at once, and more when it is quiet again.
func TestGovernorFollowsTheMachine(t *testing.T) {
	g := automatic(1, 8)
	settle := func(m machine) int {
		for range 100 {
			g.observe(m.run(g))
		}
		return g.level
	}
	if before := settle(machine{each: 0.1, bears: 100}); before < 6 {
		t.Fatalf("%d at a time on a quiet machine", before)
	}
	if busy := settle(machine{each: 0.5, bears: 1}); busy > 2 {
		t.Errorf("%d at a time on a busy one", busy)
	}
	if after := settle(machine{each: 0.1, bears: 100}); after < 6 {
		t.Errorf("%d at a time on a quiet one again", after)
	}
}

// Runs that began when there were more do not speak against the level of now.
func TestGovernorForgivesThePast(t *testing.T) {
	g := automatic(4, 8)
	for i := range 4 { // all of the four that ran, the last ones with fewer beside them
		g.observe(observation{networks: 4 - float64(i)/3, cpu: 0.5, lateness: 2})
	}
	if g.level != 3 {
		t.Errorf("four runs of the same bad time took it to %d, want 3", g.level)
	}
}

func TestGovernorKeepsToWhatIsSaid(t *testing.T) {
	g := newGovernor(3)
	for range 10 {
		g.observe(observation{networks: 3, cpu: 1, lateness: 5})
	}
	if g.level != 3 {
		t.Errorf("--jobs 3 became %d", g.level)
	}
}

func TestGovernorStaysInBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := automatic(rapid.IntRange(1, 8).Draw(t, "level"), 8)
		for range rapid.IntRange(1, 100).Draw(t, "runs") {
			g.observe(observation{
				networks: rapid.Float64Range(1, 9).Draw(t, "networks"),
				cpu:      rapid.Float64Range(0, 1).Draw(t, "cpu"),
				lateness: rapid.Float64Range(0, 3).Draw(t, "lateness"),
				lowered:  g.lowered - rapid.IntRange(0, 1).Draw(t, "past"),
			})
			if g.level < 1 || g.level > 8 {
				t.Fatalf("%d at a time", g.level)
			}
		}
	})
}
