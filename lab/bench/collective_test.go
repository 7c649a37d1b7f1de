package bench

import (
	"os"
	"testing"
	"time"
)

// A small crowd: everybody joins, hears everything and takes expulsions, and nothing of it is left.
func smallCollective(t *testing.T, o Options) {
	plan := crowdPlan{members: 24, late: 6, sample: 3, parallel: 4, changes: 2, renewals: 5, expelled: 2, idle: time.Second}
	r, err := runCrowd(t.Context(), o, plan)
	if err != nil {
		t.Fatal(err)
	}
	if n, m := len(r.join.Millis), len(r.late.Millis); n != 17 || m != 6 { // the first one brings what all share
		t.Errorf("%d and %d joins measured, want 17 and 6", n, m)
	}
	left := plan.members - plan.expelled
	if r.members.Connected != left || r.hub.Members != left || r.members.Behind != 0 || r.members.Gaps != 0 {
		t.Errorf("in the end: %+v, the coordinator: %+v", r.members, r.hub)
	}
	for _, c := range r.members.Copies {
		if c.Members != left || c.Refused != 0 {
			t.Errorf("a copy: %+v", c)
		}
	}
	for i, s := range r.changes {
		if s.Missed != 0 || s.Heard != plan.members || !(s.P99 > 0) {
			t.Errorf("change %d: %+v", i, s)
		}
	}
	for i, e := range r.reached {
		if e.Missed != 0 || e.Heard != plan.members-1-i || !(e.P99 > 0) || !(e.Verified > 0) || !(e.Cut > 0) || e.Refusal == "" {
			t.Errorf("expulsion %d: %+v", i, e)
		}
	}
	if c := r.costs(); !(c.recordBytes > 1000) || !(c.memoryEach > 0) || c.joinCPU <= 0 {
		t.Errorf("costs: %+v", c)
	}
	for _, m := range r.figures() {
		if m.Met != nil && !*m.Met {
			t.Errorf("%+v", m)
		}
	}
	if left, err := os.ReadDir(o.Out); err != nil || hasFolder(left) {
		t.Errorf("in the output folder are %v, %v: the coordinator's should be gone", left, err)
	}
}

func hasFolder(entries []os.DirEntry) bool {
	for _, e := range entries {
		if e.IsDir() {
			return true
		}
	}
	return false
}

// Nobody can have more members than files.
func TestTooManyMembers(t *testing.T) {
	o := options(t)
	if _, err := runCrowd(t.Context(), o, crowdPlan{members: 2 << 20, sample: 1, parallel: 1}); err == nil {
		t.Error("two million members in one process")
	}
}
