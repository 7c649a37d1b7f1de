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

// What root writes into a directory of the agent's user is that user's, and a file that is replaced in a directory of root
// keeps its owner.
func TestOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it gives files to other users")
	}
	owner := func(path string) [2]uint32 {
		t.Helper()
		st, err := ownerOf(path)
		if err != nil {
			t.Fatal(err)
		}
		return [2]uint32{st.Uid, st.Gid}
	}
	dir := t.TempDir()
	path, folder := filepath.Join(dir, "file"), filepath.Join(dir, "users")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(folder, 4321, 1234); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path string
		own  *[2]uint32 // of the file before
		want [2]uint32
	}{
		{path: path, want: [2]uint32{0, 0}},
		{path: path, own: &[2]uint32{0, 1234}, want: [2]uint32{0, 1234}},
		{path: path, own: &[2]uint32{4321, 1234}, want: [2]uint32{4321, 1234}},
		{path: filepath.Join(folder, "new"), want: [2]uint32{4321, 1234}},
		{path: filepath.Join(folder, "new"), own: &[2]uint32{0, 0}, want: [2]uint32{4321, 1234}},
	} {
		if test.own != nil {
			if err := os.Chown(test.path, int(test.own[0]), int(test.own[1])); err != nil {
				t.Fatal(err)
			}
		}
		if err := Replace(test.path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := owner(test.path); got != test.want {
			t.Errorf("%s of %v belongs to %v, want %v", test.path, test.own, got, test.want)
		}
	}
	key := filepath.Join(folder, "key")
	if err := Create(key, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := owner(key); got != [2]uint32{4321, 1234} {
		t.Errorf("a created file belongs to %v", got)
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
