package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The schema dcol.doctor/1, as docs/cli.md has it. What this host lacks is not
// the test's business, only that the exit code says whether it lacks something.
func TestDoctorJSON(t *testing.T) {
	var report struct {
		Schema string
		Checks []struct{ Code, Title, State, Detail, Mend string }
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("dcol", "doctor", "--json", "--config", filepath.Join(t.TempDir(), "none.toml"))
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if stderr.Len() > 0 {
		t.Errorf("stderr: %s", &stderr)
	}
	dec := json.NewDecoder(&stdout)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&report); err != nil {
		t.Fatalf("stdout: %v", err)
	}
	if report.Schema != "dcol.doctor/1" || len(report.Checks) == 0 {
		t.Fatalf("schema %q with %d checks", report.Schema, len(report.Checks))
	}

	code := regexp.MustCompile(`^[a-z0-9]+([-.][a-z0-9]+)*$`)
	seen := map[string]bool{}
	want := 0
	for _, c := range report.Checks {
		if !code.MatchString(c.Code) || seen[c.Code] {
			t.Errorf("code %q is not one that programs can tell checks apart by", c.Code)
		}
		seen[c.Code] = true
		if c.Title == "" || c.Detail == "" {
			t.Errorf("%s says nothing: %+v", c.Code, c)
		}
		if !slices.Contains([]string{"ok", "warning", "failed", "skipped", "info"}, c.State) {
			t.Errorf("%s: unknown state %q", c.Code, c.State)
		}
		if (c.State == "warning" || c.State == "failed") && strings.TrimSpace(c.Mend) == "" {
			t.Errorf("%s: %s without a fix", c.Code, c.State)
		}
		if c.State == "failed" {
			want = 1
		}
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		t.Errorf("exit code %d, want %d", got, want)
	}
}
