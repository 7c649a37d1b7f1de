package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/notify"
)

// The program gets the notice as one argument, without control characters, and its kind.
func TestTell(t *testing.T) {
	file := filepath.Join(t.TempDir(), "told")
	program := []string{"sh", "-c", `printf '%s|%s|%s' "$DCOL_EVENT" "$#" "$1" >` + file, "sh"}
	if err := tell(t.Context(), program, notify.Notice{Kind: notify.WaypointLost, Text: "bob; rm -rf \x1b[2J"}); err != nil {
		t.Fatal(err)
	}
	told, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(told), "waypoint-lost|1|bob; rm -rf ") || strings.Contains(string(told), "\x1b") {
		t.Errorf("told %q, %v", told, err)
	}
	if err := tell(t.Context(), []string{"false"}, notify.Notice{}); err == nil {
		t.Error("a program that fails is no error")
	}
}
