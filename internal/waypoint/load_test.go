package waypoint

import (
	"math"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/waypoint/giving"
)

func TestParseProcessors(t *testing.T) {
	got := parseProcessors([]byte("cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 1 1\ncpu1 0 0 0 10 0 0 5 0 0 0\nintr 5\nctxt 1\n"))
	want := []processorTime{{forwarding: 7, all: 36}, {forwarding: 5, all: 15}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, bad := range []string{"", "cpu0 1 2 3\n", "cpu0 1 2 3 4 5 6 x 8\n", "cpu0 1 2 3 4 5 6 -7 8\n"} {
		if got := parseProcessors([]byte(bad)); len(got) != 0 {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestLoadMeter(t *testing.T) {
	m := loadMeter{limit: 1000}
	start := time.Unix(1e9, 0)
	look := func(second int, members ...MemberSnapshot) (u giving.Usage) {
		m.members(members, start.Add(time.Duration(second)*time.Second), &u)
		return u
	}
	alice := func(from, to uint64) MemberSnapshot {
		return MemberSnapshot{Name: "alice", BytesFromClient: from, BytesToClient: to}
	}
	bob := func(from, to uint64) MemberSnapshot {
		return MemberSnapshot{Name: "bob", BytesFromClient: from, BytesToClient: to}
	}
	if u := look(0, alice(5000, 5000)); u.Rate != 0 || u.Members != 0 {
		t.Errorf("before anything was measured: %+v", u)
	}
	if u := look(2, alice(5100, 6000), bob(0, 600)); u.Rate != 800 || u.Limit != 1000 || u.Members != 2 {
		t.Errorf("two members: %+v", u)
	}
	if u := look(4, alice(0, 0), bob(100, 600)); u.Rate != 50 || u.Members != 1 { // alice's counts began anew
		t.Errorf("counts that fall: %+v", u)
	}
	if u := look(4, alice(9, 9), bob(100, 600)); math.IsInf(u.Rate, 0) || math.IsNaN(u.Rate) {
		t.Errorf("no time passed: %+v", u)
	}

	m.processors([]processorTime{{10, 100}, {10, 100}})
	if share := m.processors([]processorTime{{20, 200}, {100, 200}}); share != 0.9 {
		t.Errorf("the busiest processor forwarded for %v of the time, want 0.9", share)
	}
	if share := m.processors([]processorTime{{20, 200}}); share != 0 {
		t.Errorf("a processor went off: %v", share)
	}
	if share := m.processors([]processorTime{{10, 100}}); share != 0 {
		t.Errorf("the counts began anew: %v", share)
	}
}
