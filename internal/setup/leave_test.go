package setup

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestSetAside(t *testing.T) {
	dir := t.TempDir()
	config, state := filepath.Join(dir, "dcol.toml"), filepath.Join(dir, "state")
	for _, name := range []string{"identity", "collective", "other"} {
		if err := os.MkdirAll(filepath.Join(state, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(config, []byte("name"), 0o600); err != nil {
		t.Fatal(err)
	}
	moved, err := SetAside(config, state, time.Unix(0, 0))
	if err != nil || len(moved) != 3 || moved[2] != config+".left-19700101T000000Z" {
		t.Errorf("moved %q, %v", moved, err)
	}
	for _, name := range moved {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(state, "other")); err != nil {
		t.Error(err)
	}
	if moved, err := SetAside(config, state, time.Unix(1, 0)); err != nil || len(moved) > 0 {
		t.Errorf("again, moved %q, %v", moved, err)
	}
}
