package history

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/api"
)

// A full disk loses nothing of the file, and what happened meanwhile is written when there is room again.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts a small file system")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the mount ends with the thread
		dir := t.TempDir()
		for _, err := range []error{
			unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"),
		} {
			if err != nil {
				t.Error(err)
				return
			}
		}
		fillDisk(t, dir)
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	<-done
}

func fillDisk(t *testing.T, dir string) {
	r := NewRecorder(dir, nil, slog.New(slog.DiscardHandler))
	if r.store == nil {
		t.Errorf("no store: %s", r.Problem())
		return
	}
	r.pending = used(noon, 1)
	r.keep(noon)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 256<<10), 0o600); err == nil {
		t.Error("the disk is not full")
	}
	at := noon
	for i := 0; i < 2000 && r.Problem() == ""; i++ {
		at = at.Add(time.Minute)
		more := used(at, 1)
		merge(&r.pending, &more)
		r.keep(at)
	}
	if r.Problem() == "" {
		t.Error("a full disk is no problem")
	}
	t.Logf("after %v: %s", at.Sub(noon), r.Problem())
	before := len(read(t, r.store, api.StepMinute))
	if err := os.Remove(ballast); err != nil {
		t.Error(err)
	}
	at = at.Add(time.Minute)
	r.keep(at)
	if n := len(read(t, r.store, api.StepMinute)); n != before+1 || r.Problem() != "" {
		t.Errorf("with room again, %d minutes became %d; the problem is %q", before, n, r.Problem())
	}
	if err := r.store.Close(); err != nil {
		t.Error(err)
	}
	s, err := Open(File(dir))
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	if n := len(read(t, s, api.StepMinute)); n != before+1 {
		t.Errorf("opened again, there are %d minutes, not %d", n, before+1)
	}
}
