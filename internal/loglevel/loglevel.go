// Package loglevel decides which of a process's messages are logged, and can change that while it runs: one level for
// all, and others for single subsystems. A logger belongs to the subsystem that is its attribute of that name.
package loglevel

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Attribute is the key of the attribute that names a logger's subsystem.
const Attribute = "subsystem"

// Words are the levels, the most talkative first.
var Words = []string{"debug", "info", "warn", "error"}

// Parse returns the level that a word names.
func Parse(word string) (slog.Level, error) {
	var level slog.Level
	if !slices.Contains(Words, word) {
		return level, fmt.Errorf("%q is not a level: choose one of %s", word, strings.Join(Words, ", "))
	}
	err := level.UnmarshalText([]byte(word))
	return level, err
}

// Levels holds the levels. It is safe for concurrent use.
type Levels struct {
	mu     sync.RWMutex
	all    slog.Level
	single map[string]slog.Level // of subsystems that differ
	known  map[string]bool       // subsystems that have a logger
}

// New returns Levels with one level for all.
func New(all slog.Level) *Levels {
	return &Levels{all: all, single: make(map[string]slog.Level), known: make(map[string]bool)}
}

// SetAll sets one level for all subsystems, in place of all others.
func (l *Levels) SetAll(level slog.Level) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = level
	clear(l.single)
}

// Set sets the level of one subsystem. The error names those that exist.
func (l *Levels) Set(subsystem string, level slog.Level) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.known[subsystem] {
		return fmt.Errorf("%q is not a subsystem of this agent: choose one of %s", subsystem, strings.Join(slices.Sorted(maps.Keys(l.known)), ", "))
	}
	l.single[subsystem] = level
	return nil
}

// State returns the level for all, and the level of each known subsystem.
func (l *Levels) State() (all slog.Level, subsystems map[string]slog.Level) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	subsystems = make(map[string]slog.Level, len(l.known))
	for name := range l.known {
		subsystems[name] = l.of(name)
	}
	return l.all, subsystems
}

func (l *Levels) of(subsystem string) slog.Level {
	if level, ok := l.single[subsystem]; ok {
		return level
	}
	return l.all
}

func (l *Levels) enabled(subsystem string, level slog.Level) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return level >= l.of(subsystem)
}

func (l *Levels) learn(subsystem string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known[subsystem] = true
}

// Handler returns a handler that passes on to next what the levels let through. next must take all levels.
func (l *Levels) Handler(next slog.Handler) slog.Handler { return &handler{next: next, levels: l} }

type handler struct {
	next      slog.Handler
	levels    *Levels
	subsystem string
	grouped   bool // later attributes are in a group, and name no subsystem
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	return h.levels.enabled(h.subsystem, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error { return h.next.Handle(ctx, r) }

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := *h
	out.next = h.next.WithAttrs(attrs)
	for _, a := range attrs {
		if a.Key == Attribute && !h.grouped {
			out.subsystem = a.Value.String()
			h.levels.learn(out.subsystem)
		}
	}
	return &out
}

func (h *handler) WithGroup(name string) slog.Handler {
	out := *h
	out.next, out.grouped = h.next.WithGroup(name), h.grouped || name != ""
	return &out
}
