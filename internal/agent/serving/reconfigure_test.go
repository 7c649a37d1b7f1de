package serving

import (
	"testing"

	"github.com/detour-collective/dcol/internal/config"
)

func TestMappedOnly(t *testing.T) {
	var s Serving
	s.terms.Store(&config.Waypoint{Members: []config.MemberTerms{{Name: "limited", Ports: []int{80}}, {Name: "busy", MonthlyQuota: 1}}})
	for member, want := range map[string]bool{"limited": true, "busy": false, "other": false} {
		if got := s.mappedOnly(member); got != want {
			t.Errorf("%s: %v", member, got)
		}
	}
}
