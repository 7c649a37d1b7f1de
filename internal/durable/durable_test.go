package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, text := range []string{"first", "second"} {
		if err := Replace(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q, %v; want %q", got, err, text)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	onlyThat(t, path)
}

func TestCreateNeverReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := Create(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Create(path, []byte("another"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second time: %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "mine" {
		t.Errorf("%q, %v", got, err)
	}
	onlyThat(t, path)
}

// What cannot be put in its place leaves everything as it was.
func TestReplaceFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder")
	if err := os.MkdirAll(filepath.Join(path, "within"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("text"), 0o600); err == nil {
		t.Error("a folder was replaced by a file")
	}
	onlyThat(t, path)
	if err := Replace(filepath.Join(path, "missing", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no folder: %v", err)
	}
}

// onlyThat says that nothing half done lies beside a file.
func onlyThat(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("beside %s: %v, %v", path, entries, err)
	}
}
