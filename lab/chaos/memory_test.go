package chaos

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Chaos runs in containers, too, whose kernel does not show the machine's limit.
func TestMemoryInContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a network namespace")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- checkMemory()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
