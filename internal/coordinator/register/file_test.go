package register

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const testCollective = "test collective"

// opened is a register read from a file.
func opened(t *testing.T, path string) (*File, *Register, *Damage) {
	t.Helper()
	r := New(rand.IntN)
	s, d, err := Open(path, testCollective, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, r, d
}

func newFile(t *testing.T, members ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "register")
	if err := Create(path, testCollective); err != nil {
		t.Fatal(err)
	}
	s, _, _ := opened(t, path)
	for i, name := range members {
		if err := s.append(Entry{Member: &Member{Name: name, Key: keyNumber(i), Until: begin}}); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	return path
}

func TestStoreComesBack(t *testing.T) {
	path := newFile(t, "a", "b")
	s, r, d := opened(t, path)
	if len(r.Members()) != 2 || len(d.What) > 0 {
		t.Fatalf("%d members, %v", len(r.Members()), d.What)
	}
	if err := s.Rewrite(r); err != nil {
		t.Fatal(err)
	}
	if err := s.append(Entry{Forget: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	if _, r, d := opened(t, path); len(r.Members()) != 1 || len(d.What) > 0 {
		t.Errorf("%d members, %v", len(r.Members()), d.What)
	}
	if _, _, err := Open(path, "another", New(rand.IntN)); err == nil {
		t.Error("opens another collective's")
	}
	if err := Create(path, testCollective); err == nil {
		t.Error("makes one over it")
	}
}

// After a power cut at any byte, acknowledged changes are there, half-written ones are not, and more can be
// written.
func TestStoreCutOffAnywhere(t *testing.T) {
	path := newFile(t, "a", "b", "c")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		cut := filepath.Join(t.TempDir(), "register")
		if err := os.WriteFile(cut, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		s, r, d := opened(t, cut)
		lines := strings.Count(string(whole[:n]), "\n")
		if want := max(lines-1, 0); len(r.Members()) != want {
			t.Fatalf("after %d bytes: %d members, want %d", n, len(r.Members()), want)
		}
		if partial := n > 0 && whole[n-1] != '\n'; partial != (len(d.What) > 0 && strings.Contains(d.What[0], "is incomplete")) {
			t.Errorf("after %d bytes: told %q", n, d.What)
		}
		if d.Lost != (lines == 0) {
			t.Errorf("after %d bytes: lost %v", n, d.Lost)
		}
		if d.Lost {
			if err := s.Rewrite(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.append(Entry{Member: &Member{Name: "z", Key: keyNumber(99), Until: begin}}); err != nil {
			t.Fatal(err)
		}
		if _, again, d := opened(t, cut); len(again.Members()) != len(r.Members())+1 || len(d.What) > 0 {
			t.Errorf("after %d bytes: %d members later, %v", n, len(again.Members()), d.What)
		}
	}
}

// Damage in the middle loses only the damaged part, and is reported; the file is kept as it was.
func TestStoreDamagedAnywhere(t *testing.T) {
	path := newFile(t, "a", "b", "c")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := strings.LastIndexByte(strings.TrimSuffix(string(whole), "\n"), '\n')
	for n := range whole {
		data := append([]byte{}, whole...)
		data[n] ^= 0x20
		damaged := filepath.Join(t.TempDir(), "register")
		if err := os.WriteFile(damaged, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, r, d := opened(t, damaged)
		if len(d.What) == 0 || len(r.Members()) < 1 {
			t.Fatalf("byte %d: %d members, told %q", n, len(r.Members()), d.What)
		}
		aside, _ := filepath.Glob(damaged + ".damaged-*")
		if n < last && (!d.Lost || len(aside) != 1) {
			t.Errorf("byte %d: lost %v, put aside %q", n, d.Lost, aside)
		}
	}
}

func TestStoreMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "register")
	s, _, d := opened(t, path)
	if !d.Lost {
		t.Error("nothing is said of it")
	}
	if err := s.Rewrite(New(rand.IntN)); err != nil {
		t.Fatal(err)
	}
	if _, _, d := opened(t, path); len(d.What) > 0 {
		t.Error(d.What)
	}
}

// A change that cannot be written has no effect.
func TestStoreThatCannotBeWritten(t *testing.T) {
	path := newFile(t, "a")
	s, _, _ := opened(t, path)
	s.file.Close()
	if s.append(Entry{Forget: []string{"a"}}) == nil || s.broken == nil {
		t.Error("a closed file takes it")
	}
	if s.append(Entry{Forget: []string{"a"}}) == nil {
		t.Error("goes on with a file of which nothing is known")
	}
	if _, r, d := opened(t, path); len(r.Members()) != 1 || len(d.What) > 0 {
		t.Errorf("%d members, %v", len(r.Members()), d.What)
	}
}

func TestStoreIsWrittenAnew(t *testing.T) {
	path := newFile(t)
	s, r, _ := opened(t, path)
	m := Member{Name: "a", Key: keyNumber(1), Until: begin}
	for i := 0; !s.Due(); i++ {
		m.Until = begin.Add(time.Duration(i) * time.Hour)
		next := m
		e := Entry{Member: &next}
		line, err := encodeEntry(&e)
		if err != nil {
			t.Fatal(err)
		}
		if s.size += int64(len(line)); i > 1<<20 {
			t.Fatal("never")
		}
		r.Apply(&e)
	}
	if err := s.Rewrite(r); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(path); info.Size() > 1000 || s.Due() {
		t.Errorf("it has %d bytes", info.Size())
	}
}
