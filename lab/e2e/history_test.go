package e2e

import (
	"encoding/json"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
)

// What a download carried over a detour is in the history, also after another agent has taken over.
func TestHistory(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	w.detoured()
	over := func() (bytes uint64) {
		var h api.History
		if err := json.Unmarshal([]byte(w.dcol(alice, "history", "--by", "minute", "--json")), &h); err != nil {
			t.Fatal(err)
		}
		for _, p := range h.Total.Paths {
			if p.Waypoint == bob {
				bytes += p.Received
			}
		}
		return bytes
	}
	w.eventually("the history has the detour", func() error { return holds(over() > 0, "it has not") })
	before := over()
	w.restart(alice)
	if after := over(); after < before {
		t.Errorf("%d bytes before the restart, %d afterwards", before, after)
	}
	x.endsWell()
}
