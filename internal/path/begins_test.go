package path_test

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A stream leaves a long detour before the kind of its traffic is certain. Both paths carry again as soon as it becomes a
// download.
func TestStreamLeavesALongDetourEarly(t *testing.T) {
	ways := map[string]*way{
		"":    wayOf(20*time.Millisecond, &link{rate: 16e6, buffer: 50 * time.Millisecond}),
		"far": wayOf(160*time.Millisecond, &link{rate: 16e6, buffer: 50 * time.Millisecond}),
	}
	f := offeredTo(t, 1, ways, "far")
	d := f.connect(500e3)
	f.run(900 * time.Millisecond)
	says := func(what string) bool {
		return slices.ContainsFunc(d.log, func(line string) bool { return strings.HasSuffix(line, what) })
	}
	if !says("demote far") || says("demote direct") {
		t.Fatalf("a stream: %v", d.log)
	}
	d.demand = 0
	f.run(500 * time.Millisecond)
	if !says("promote far") {
		t.Errorf("a download: %v", d.log)
	}
}
