package bench

import (
	"math"
	"testing"
	"time"
)

var exampleCosts = crowdCosts{
	members: 10_000, memoryBase: 50 << 20, memoryEach: 100 << 10,
	idleCPU: 1e-6, idleBytes: 10, joinCPU: 4 * time.Millisecond, renewCPU: 2 * time.Millisecond,
	deliverCPU: 10 * time.Microsecond, deliverBytes: 1500, recordBytes: 1400, expelFirst: 100 * time.Millisecond, expelSpread: 200 * time.Millisecond,
}

// The figures are worked out by hand: a renewal every two days is 50,000 changes a day for 100,000 members.
func TestProjection(t *testing.T) {
	p := exampleCosts.at(100_000, 48*time.Hour, 2)
	for _, c := range []struct {
		what      string
		got, want float64
	}{
		{"changes a day", p.changesDaily, 50_000},
		{"memory", p.memory, 50<<20 + 100_000*(100<<10)},
		{"cores to tell records: 5e9 deliveries of 10 µs in 86400 s", p.feedCores, 5e9 * 10e-6 / 86400},
		{"cores", p.cores, 5e9*10e-6/86400 + 0.1 + 50_000*0.002/86400},
		{"bytes a member and day", p.memberDay, 50_000*1500 + 86400*10},
		{"bit/s", p.outbound, 100_000 * (50_000*1500 + 86400*10) * 8 / 86400.0},
		{"first copy", p.firstCopy, 140e6},
		{"joins: 400 s of processor time on two cores", p.joinAll.Seconds(), 200},
		{"expulsion", p.expel.Seconds(), 2.1},
	} {
		if math.Abs(c.got-c.want) > 1e-6*math.Abs(c.want) {
			t.Errorf("%s: %v, want %v", c.what, c.got, c.want)
		}
	}
}

// For the members it was measured with, it says what was measured.
func TestProjectionOfItself(t *testing.T) {
	p := exampleCosts.at(exampleCosts.members, 48*time.Hour, 2)
	if want := 300 * time.Millisecond; p.expel != want {
		t.Errorf("an expulsion takes %v, measured were %v", p.expel, want)
	}
	if want := exampleCosts.memoryBase + 10_000*exampleCosts.memoryEach; p.memory != want {
		t.Errorf("memory %v, want %v", p.memory, want)
	}
}

// A certificate of seven days is first renewed within the second day.
func TestRenewEvery(t *testing.T) {
	if e := renewEvery(); e != 36*time.Hour {
		t.Errorf("every %v", e)
	}
}
