package ui

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// The result of probing a path is shown with its age, and without control characters.
func TestWhyProbed(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	to := netip.MustParseAddrPort("203.0.113.7:443")
	var out strings.Builder
	err := Why(&out, api.Why{Server: to, Probed: []api.ProbedPath{
		{At: now.Add(-3 * time.Hour), To: to, Recipe: "mptcp", Confidence: "certain", Text: "MP_CAPABLE is removed between hop 3 and hop 4.", Evidence: []string{"a \x1b[31mquote"}},
		{At: now.Add(-time.Minute), To: to, Waypoint: "bob", Recipe: "in-band", Confidence: "likely", Text: "The option is removed."},
	}}, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Probed paths\n  to 203.0.113.7:443, mptcp, 3 h ago (certain): MP_CAPABLE is removed between hop 3 and hop 4.\n",
		"  to bob, 203.0.113.7, in-band, 1 min ago (likely): The option is removed.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("a control character is shown")
	}
}
