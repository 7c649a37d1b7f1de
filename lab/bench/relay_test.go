package bench

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A listener of the engine is watched by the engine alone.
func TestOwnDescriptorIsNotWatched(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := ownDescriptor(l.(*net.TCPListener))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if isWatched(t, fd) {
		t.Error("an epoll of this process watches the copy")
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		if !isWatched(t, int(fd)) {
			t.Error("Go's poller does not watch the copy that File makes, or this test does not see it")
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// isWatched reports whether any epoll of this process watches a descriptor.
func isWatched(t *testing.T, fd int) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no descriptors in /proc/self/fdinfo: %v", err)
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may be closed by now
		for line := range strings.Lines(string(text)) {
			var watched int
			if n, _ := fmt.Sscanf(line, "tfd: %d", &watched); n == 1 && watched == fd {
				return true
			}
		}
	}
	return false
}
