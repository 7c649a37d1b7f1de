package battery

import (
	"log/slog"
	"os"
	"testing"

	"github.com/detour-collective/dcol/lab/programs/programstest"
)

// Each implementation hands over to a radio that sleeps, and the modes differ in the energy before.
func TestAsleep(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	if _, err := os.Stat("/proc/sys/net/mptcp/enabled"); err != nil {
		t.Skip("this kernel has no MPTCP")
	}
	o := Options{Programs: programstest.Build(t), Log: slog.New(slog.DiscardHandler)}
	for _, test := range []struct {
		impl implementation
		mode string
	}{{kernelPM, "single"}, {dcol, "backup"}, {dcol, "background"}} {
		t.Run(string(test.impl)+" "+test.mode, func(t *testing.T) {
			t.Parallel()
			b, err := build(t.Context(), o, radio, test.impl, 1, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			a := &attempt{bed: b, variant: variant{shape: radio, mode: test.mode}, lengths: lengthsOf(false), measured: func() {}}
			v, err := asleep(t.Context(), a)
			t.Logf("%v, %v", v, err)
			if err != nil || v["broke"] > 0 || v["joules"] == 0 || (v["joules_before"] > 0) != (test.mode == "backup") {
				t.Errorf("%v, %v", v, err)
			}
		})
	}
}
