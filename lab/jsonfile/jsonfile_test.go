package jsonfile

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadsWhatItWrote(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	var got map[string]int
	if err := Read(path, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
	if err := Write(path, map[string]int{"a": 1}); err != nil {
		t.Fatal(err)
	}
	if err := Read(path, &got); err != nil || got["a"] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if err := Write(path, math.NaN()); err == nil {
		t.Error("what cannot be encoded is written")
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "{\n  \"a\": 1\n}\n" {
		t.Errorf("the file has %q, %v", data, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Read(path, &got); err == nil || !strings.HasPrefix(err.Error(), path) {
		t.Errorf("of a damaged file: %v", err)
	}
}
