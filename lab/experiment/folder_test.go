package experiment

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A folder keeps the results that it has of something else.
func TestFolderOfSomethingElse(t *testing.T) {
	for there, want := range map[string]string{
		"": "",
		`{"schema": "dcol.lab/1", "scenario": "mine"}`:   "",
		`{"schema": "dcol.table/1", "name": "mine"}`:     "",
		`{"schema": "dcol.lab/1", "scenario": "theirs"}`: "has the results of theirs: choose another folder",
		`{"schema": "dcol.demo/1"}`:                      "has the results of dcol.demo/1: choose",
		`{"answer": 42}`:                                 "is no experiment's: move it elsewhere",
		"hi":                                             "is no experiment's: move it elsewhere",
	} {
		folder := t.TempDir()
		if there != "" {
			if err := os.WriteFile(filepath.Join(folder, "result.json"), []byte(there), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		err := notOthers(folder, "mine")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", there, err, want)
		}
	}
}

// A result that cannot be made leaves the one before, and no half of one.
func TestResultIsWholeOrNotAtAll(t *testing.T) {
	folder, broken := t.TempDir(), errors.New("broken")
	whole := func(w io.Writer) error { _, err := io.WriteString(w, "whole"); return err }
	if err := write(folder, "result.json", whole); err != nil {
		t.Fatal(err)
	}
	half := func(w io.Writer) error { return errors.Join(whole(w), broken) }
	if err := write(folder, "result.json", half); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	files, _ := os.ReadDir(folder)
	if data, err := os.ReadFile(filepath.Join(folder, "result.json")); err != nil || string(data) != "whole" || len(files) != 1 {
		t.Errorf("%q, %v, %d files", data, err, len(files))
	}
}
