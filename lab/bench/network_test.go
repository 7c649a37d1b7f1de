package bench

import (
	"log/slog"
	"os"
	"testing"

	"github.com/detour-collective/dcol/lab/testbed"
)

// A benchmark that is killed leaves no keys on the machine.
func TestAuthorityStaysInTheNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	o := Options{Out: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	s, err := openStar(t.Context(), o, testbed.BackendVeth, []string{"client", "waypoint"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("on the machine there is %v, %v", left, err)
	}
	for _, name := range s.members {
		err := s.Host(name).Do(func() error {
			if left, err := os.ReadDir(authorityDir); !os.IsNotExist(err) {
				t.Errorf("on %s there is %v, %v", name, left, err)
			}
			_, err := os.Stat(identity.Key)
			return err
		})
		if err != nil {
			t.Errorf("the credentials of %s: %v", name, err)
		}
	}
}
