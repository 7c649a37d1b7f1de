package bench

import (
	"os/exec"
	"testing"
)

// The rows about what is found do not depend on the machine.
func TestAnalyseFinds(t *testing.T) {
	m, err := plantedEvents(t.Context(), t.TempDir())
	if err != nil || m.Value != 100 || !*m.Met {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestAnalyseAsTshark(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("needs the program tshark")
	}
	m, err := asTshark(t.Context(), t.TempDir())
	if err != nil || !*m.Met {
		t.Errorf("%+v, %v", m, err)
	}
}
