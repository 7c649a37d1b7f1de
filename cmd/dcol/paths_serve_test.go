package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestFollowGraph: a graph is read once after each change of its file, also after one that could not be read or while the
// file was missing.
func TestFollowGraph(t *testing.T) {
	name := filepath.Join(t.TempDir(), "graph")
	write := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(name+".new", []byte(text), 0o600), os.Rename(name+".new", name)); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	seen, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	read, ended := make(chan string), make(chan struct{})
	go func() {
		defer close(ended)
		followGraph(ctx, name, seen, time.Millisecond, func() error {
			text, err := os.ReadFile(name)
			select {
			case read <- string(text):
			case <-ctx.Done():
			}
			return errors.Join(err, errors.New("not usable"))
		}, slog.New(slog.DiscardHandler))
	}()
	next := func(want string) {
		t.Helper()
		select {
		case got := <-read:
			if got != want {
				t.Errorf("read %q, want %q", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%q is not read", want)
		}
	}
	write("second")
	next("second")
	write("third")
	next("third")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	write("fourth")
	next("fourth")
	cancel()
	<-ended
}
