package durable

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestStamps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	stamp := func() Stamp { return Stamps(path, "")[0] }
	seen := []Stamp{stamp()}
	if seen[0] != (Stamp{}) {
		t.Errorf("a file that is not there: %+v", seen[0])
	}
	for what, change := range map[string]func() error{
		"created":  func() error { return Replace(path, []byte("one"), 0o600) },
		"replaced": func() error { return Replace(path, []byte("two"), 0o600) },
		"written":  func() error { return os.WriteFile(path, []byte("three"), 0o600) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		now := stamp()
		if slices.Contains(seen, now) {
			t.Errorf("%s: %+v was there before", what, now)
		}
		if now != stamp() {
			t.Errorf("%s: unstable", what)
		}
		seen = append(seen, now)
	}
	if err := os.Chmod(path, 0o644); err != nil || slices.Contains(seen, stamp()) {
		t.Errorf("another mode: %v", err)
	}
}
