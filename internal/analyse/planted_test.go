package analyse_test

import (
	"testing"

	"github.com/detour-collective/dcol/internal/analyse/analysetest"
)

// TestPlanted mixes connections of all kinds in one capture. In each, exactly what was planted must be found.
func TestPlanted(t *testing.T) {
	mixed := analysetest.Mix(25)
	records, counts := run(t, defaults(), pcapOf(t, mixed.Frames, 128))
	if len(records) != mixed.Connections() || counts.MPTCP != uint64(len(mixed.Frames)) {
		t.Fatalf("%d of %d connections in %d of %d packets", len(records), mixed.Connections(), counts.MPTCP, len(mixed.Frames))
	}
	for _, r := range records {
		kind := mixed.Of(r)
		if got, exactly := kind.Find(r); !exactly {
			t.Errorf("%s:\n found %+v\nplanted %+v", kind.Name, got, kind.Want)
		}
	}
}
