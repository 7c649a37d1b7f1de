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

// A detour that was quicker for messages carries from the beginning.
func TestQuickerDetourBeginsWithMessages(t *testing.T) {
	ways := map[string]*way{
		"":     wayOf(60*time.Millisecond, &link{rate: 16e6, buffer: 50 * time.Millisecond}),
		"near": wayOf(20*time.Millisecond, &link{rate: 16e6, buffer: 50 * time.Millisecond}),
	}
	f := offeredTo(t, 1, ways)
	f.run(time.Second)
	first := f.connect(500e3)
	f.run(20 * time.Second)
	f.close(first)
	f.offer("near")
	for i, begins := range []bool{true, false} { // as a backup
		d := f.connect(500e3)
		if over := d.over("near"); over == nil || over.backup != begins {
			t.Errorf("connection %d: the detour begins as a backup: %v, want %v: %v", i, !begins, begins, d.log)
		}
		f.run(20 * time.Second)
		f.close(d)
	}
}

// Towards servers with which messages were exchanged, detours begin as backups. One with a shorter round trip carries as
// soon as data has moved, and all carry as soon as much moves.
func TestDetoursStandByWhereMessagesAreExpected(t *testing.T) {
	ways := map[string]*way{
		"":     wayOf(60*time.Millisecond, &link{rate: 16e6, buffer: 50 * time.Millisecond}),
		"far":  wayOf(160*time.Millisecond, &link{rate: 16e6, buffer: 50 * time.Millisecond}),
		"near": wayOf(20*time.Millisecond, &link{rate: 16e6, buffer: 50 * time.Millisecond}),
	}
	for _, test := range []struct {
		detour  string
		demand  float64 // of the second connection
		carries bool
	}{{"far", 500e3, false}, {"near", 500e3, true}, {"far", 0, true}} {
		f := offeredTo(t, 1, ways)
		first := f.connect(500e3)
		f.run(20 * time.Second)
		f.close(first)
		f.offer(test.detour)
		d := f.connect(test.demand)
		if over := d.over(test.detour); over == nil || !over.backup {
			t.Errorf("%s: the detour does not begin as a backup: %v", test.detour, d.log)
			continue
		}
		if why := f.why(d, test.detour); !strings.HasPrefix(why, "stands by: messages are likely") {
			t.Errorf("%s: why: %q", test.detour, why)
		}
		f.run(time.Second)
		if over := d.over(test.detour); over == nil || over.backup == test.carries {
			t.Errorf("%s, with %.0f bit/s: after a second, it carries: %v, want %v: %v", test.detour, test.demand, !test.carries, test.carries, d.log)
		}
	}
}
