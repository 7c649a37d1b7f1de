package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRecordMerges(t *testing.T) {
	path := filepath.Join(t.TempDir(), resultFile)
	figure := func(benchmark, name string, value float64) Measurement {
		m := once(name, "s", value)
		m.Benchmark = benchmark
		return m
	}
	write := func(found ...Measurement) {
		t.Helper()
		if err := record(path, found); err != nil {
			t.Fatal(err)
		}
	}
	write(figure("wire", "lateness", 1), figure("wire", "no longer measured", 2))
	write(figure("join", "time", 3))
	write(figure("wire", "lateness", 4))
	got, err := read(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []Measurement{figure("join", "time", 3), figure("wire", "lateness", 4)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestRecordKeepsWhatItCannotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), resultFile)
	if err := os.WriteFile(path, []byte("[{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := record(path, []Measurement{once("time", "s", 1)}); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("a damaged result: %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "[{" {
		t.Errorf("it was overwritten: %q, %v", data, err)
	}
}
