package collective

import (
	"strings"
	"testing"
)

func TestCollectiveNames(t *testing.T) {
	for _, good := range []string{"friends", "Freunde & Söhne (Köln)", "友達", strings.Repeat("a", maxCollective)} {
		if err := CheckCollective(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", " ", "a ", "a\nb", "\x1b[31m", "a\u202eb", "\xff", strings.Repeat("a", maxCollective+1)} {
		if err := CheckCollective(bad); err == nil {
			t.Errorf("a collective may be called %q", bad)
		}
		if _, err := InitCA(t.TempDir()+"/ca", bad); err == nil {
			t.Errorf("made a collective called %q", bad)
		}
	}
	if err := CheckName("é"); err == nil || !strings.Contains(err.Error(), "'é' at position 1") {
		t.Errorf("%v", err)
	}
}
