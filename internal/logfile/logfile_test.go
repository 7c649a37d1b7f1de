package logfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// standard is a descriptor of the test's own, which stands for standard error.
func standard(t *testing.T) int {
	t.Helper()
	fd, err := unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// No line is lost or split but those that are older than the limit allows, and the disk has no more than that.
func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.log")
	if err := os.WriteFile(path, []byte("of an agent before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fd := standard(t)
	l, err := open(path, 100, fd)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 30 {
		fmt.Fprintf(l, "line %02d\n", n)
		if n == 0 && !strings.HasPrefix(read(t, path), "of an agent before\nline 00\n") {
			t.Errorf("it does not go on where it was: %q", read(t, path))
		}
		if _, err := unix.Write(fd, []byte("a panic\n")); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{path, path + ".1"} {
			if info, err := os.Stat(p); err == nil && info.Size() > 100+16 {
				t.Errorf("%s has %d bytes", p, info.Size())
			}
		}
	}
	both := read(t, path+".1") + read(t, path)
	first := strings.Index(both, "line ")
	var from int
	fmt.Sscanf(both[first:], "line %d", &from)
	want := both[:first]
	for n := from; n < 30; n++ {
		want += fmt.Sprintf("line %02d\na panic\n", n)
	}
	if both != want || from > 24 || from < 15 {
		t.Errorf("from %d:\n%swant\n%s", from, both, want)
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 2 {
		t.Errorf("%v, %v", files, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// Where it cannot be put aside it goes on, and says so now and then.
func TestCannotRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.log")
	l, err := open(path, 1000, standard(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(path+".1/in the way", 0o700); err != nil {
		t.Fatal(err)
	}
	for range 300 {
		fmt.Fprintln(l, "another line")
	}
	text := read(t, path)
	lines, said := strings.Count(text, "another line\n"), strings.Count(text, "grows beyond its limit: put the log aside")
	if lines != 300 || said < 2 || said > 5 {
		t.Errorf("%d lines, said %d times:\n%s", lines, said, text)
	}
	os.RemoveAll(path + ".1")
	for range 100 {
		fmt.Fprintln(l, "another line")
	}
	os.Remove(path)
	for range 100 {
		fmt.Fprintln(l, "another line")
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 1100 {
		t.Errorf("it has %d bytes when nothing is in the way any more: %v", info.Size(), err)
	}
}

func TestOpenFails(t *testing.T) {
	if _, err := open(filepath.Join(t.TempDir(), "none", "agent.log"), 100); err == nil {
		t.Error("a log in no folder")
	}
}
