package serving

import (
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/config"
)

func TestChangedTerms(t *testing.T) {
	terms := func(name string, ports ...int) config.MemberTerms {
		return config.MemberTerms{Name: name, Ports: ports}
	}
	before := []config.MemberTerms{terms("same", 80), terms("other", 80), terms("gone", 80)}
	now := []config.MemberTerms{terms("other", 80, 443), terms("same", 80), terms("new", 22)}
	if got := changedTerms(before, now); !slices.Equal(got, []string{"gone", "new", "other"}) {
		t.Errorf("changed: %q", got)
	}
}
