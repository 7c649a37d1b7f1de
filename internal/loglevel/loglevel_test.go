package loglevel

import (
	"bytes"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
)

func TestLevels(t *testing.T) {
	var out bytes.Buffer
	levels := New(slog.LevelInfo)
	log := slog.New(levels.Handler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	session, client := log.With(Attribute, "session").With("peer", "bob"), log.With(Attribute, "client")
	inGroup := log.WithGroup("g").With(Attribute, "other")
	said := func() string {
		out.Reset()
		for name, l := range map[string]*slog.Logger{"plain": log, "session": session, "client": client, "group": inGroup} {
			l.Debug("said", "by", name)
		}
		var names []string
		for _, name := range []string{"plain", "session", "client", "group"} {
			if strings.Contains(out.String(), "by="+name) {
				names = append(names, name)
			}
		}
		return strings.Join(names, " ")
	}
	if got := said(); got != "" {
		t.Errorf("at info, debug messages come from %q", got)
	}
	if err := levels.Set("session", slog.LevelDebug); err != nil {
		t.Fatal(err)
	}
	if got := said(); got != "session" {
		t.Errorf("with debug for session, they come from %q", got)
	}
	all, single := levels.State()
	if want := map[string]slog.Level{"session": slog.LevelDebug, "client": slog.LevelInfo}; all != slog.LevelInfo || !maps.Equal(single, want) {
		t.Errorf("state: %v, %v", all, single)
	}
	levels.SetAll(slog.LevelDebug)
	if got := said(); got != "plain session client group" {
		t.Errorf("at debug, they come from %q", got)
	}
	levels.SetAll(slog.LevelWarn)
	if got := said(); got != "" {
		t.Errorf("SetAll keeps a subsystem's level: %q", got)
	}
	if err := levels.Set("sesion", slog.LevelDebug); err == nil || !strings.Contains(err.Error(), "client, session") {
		t.Errorf("an unknown subsystem: %v", err)
	}
}

func TestParse(t *testing.T) {
	for word, want := range map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError} {
		if got, err := Parse(word); got != want || err != nil {
			t.Errorf("%s: %v, %v", word, got, err)
		}
	}
	for _, word := range []string{"", "DEBUG", "info+1", "all"} {
		if _, err := Parse(word); err == nil {
			t.Errorf("%q is a level", word)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	levels := New(slog.LevelInfo)
	log := slog.New(levels.Handler(slog.NewTextHandler(new(bytes.Buffer), &slog.HandlerOptions{Level: slog.LevelDebug})))
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for range 100 {
				log.With(Attribute, "x").Debug("y")
				_ = levels.Set("x", slog.LevelWarn)
				levels.SetAll(slog.LevelInfo)
				levels.State()
			}
		})
	}
	running.Wait()
}
