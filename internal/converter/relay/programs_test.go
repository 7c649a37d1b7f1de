package relay

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/detour-collective/dcol/internal/converter/ask"
)

// A program is excluded by the path of its file, and by a symbolic link to it, as far as that leads somewhere.
func TestExcludedPrograms(t *testing.T) {
	folder := t.TempDir()
	file, link, loop := filepath.Join(folder, "python3.11"), filepath.Join(folder, "python3"), filepath.Join(folder, "loop")
	for _, err := range []error{os.WriteFile(file, nil, 0o700), os.Symlink("python3.11", link), os.Symlink("loop", loop)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	x := &user{programs: withTargets([]string{link, loop, "/usr/bin/missing"})}
	for program, want := range map[string]bool{file: true, link: true, "/usr/bin/missing": true, folder: false, file + "x": false} {
		if got := x.Excludes(ask.Process{}, program); got != want {
			t.Errorf("%s is excluded: %v, want %v", program, got, want)
		}
	}
}
