package top

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gdamore/tcell/v3"

	"github.com/detour-collective/dcol/internal/api"
)

// wire is a terminal that records what is written to it.
type wire struct {
	mu       sync.Mutex
	sent     strings.Builder
	pictures int // number of writes
	hungUp   chan struct{}
	once     sync.Once
	keys     chan string   // nil: nobody types
	stopped  chan struct{} // while it is open, writes block; nil: they never do
}

func (w *wire) Start() error             { return nil }
func (w *wire) Drain() error             { return nil }
func (w *wire) NotifyResize(chan<- bool) {}
func (w *wire) Close() error             { return nil }

func (w *wire) Stop() error {
	w.once.Do(func() { close(w.hungUp) })
	return nil
}

func (w *wire) WindowSize() (tcell.WindowSize, error) {
	return tcell.WindowSize{Width: 80, Height: 24}, nil
}

func (w *wire) Read(p []byte) (int, error) {
	select {
	case keys := <-w.keys:
		return copy(p, keys), nil
	case <-w.hungUp:
		return 0, io.EOF
	}
}

func (w *wire) Write(p []byte) (int, error) {
	if w.stopped != nil {
		<-w.stopped
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pictures++
	return w.sent.Write(p)
}

// take returns what was written since the last call.
func (w *wire) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.sent.Reset()
	return w.sent.String()
}

// wired returns a screen on a wire.
func wired(t *testing.T) (*wire, tcell.Screen) {
	t.Helper()
	w := &wire{hungUp: make(chan struct{})}
	screen, err := tcell.NewTerminfoScreenFromTty(w, tcell.OptNegotiation(false))
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(screen.Fini)
	return w, screen
}

// With 1,000 connections whose rates all change, an update is small enough for a slow line. It never clears the screen,
// which would flicker.
func TestUpdatesAreSmall(t *testing.T) {
	t.Setenv("TERM", "xterm-256color")
	w, screen := wired(t)
	const states, most = 30, 80 * 24 / 2
	var m Model
	sum := 0
	for i := range states {
		now := start.Add(time.Duration(i) * time.Second)
		m.Handle(Answered{status(1000, i), time.Second}, now)
		paint(screen, View(&m, now, 80, 24, Look{}), styles(screen.Colors()))
		sent := w.take()
		if i == 0 {
			if !strings.Contains(sent, "alice") {
				t.Fatalf("the first picture is %q", sent)
			}
			continue
		}
		if sum += len(sent); strings.Contains(sent, "\x1b[J") || strings.Contains(sent, "\x1b[2J") {
			t.Errorf("state %d clears the screen: %q", i, sent)
		}
	}
	mean := sum / (states - 1)
	t.Logf("%d bytes for each state", mean)
	if mean > most {
		t.Errorf("%d bytes are sent for each state, at most %d", mean, most)
	}
}

// Without colours, only the row under the cursor is reversed.
func TestWithoutColours(t *testing.T) {
	const reverse = "\x1b[7m"
	for _, c := range []struct{ name, value string }{{"NO_COLOR", "1"}, {"TERM", "vt100"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("TERM", "xterm-256color")
			t.Setenv("COLORTERM", "")
			t.Setenv(c.name, c.value)
			w, screen := wired(t)
			var m Model
			m.Handle(Answered{status(3, 0), time.Second}, start)
			paint(screen, View(&m, start, 80, 24, Look{}), styles(screen.Colors()))
			if sent := w.take(); !strings.Contains(sent, "alice") || strings.Contains(sent, reverse) {
				t.Errorf("without a cursor, reversed: %q", sent)
			}
			m.Handle(Key("down"), start)
			paint(screen, View(&m, start, 80, 24, Look{}), styles(screen.Colors()))
			if sent := w.take(); strings.Count(sent, reverse) != 1 {
				t.Errorf("with a cursor, not one text is reversed: %q", sent)
			}
		})
	}
}

// silent does not answer.
type silent struct{ Agent }

func (silent) Status(ctx context.Context) (api.Status, error) {
	<-ctx.Done()
	return api.Status{}, ctx.Err()
}

// Keys that arrive while a picture is being written share the next picture, so that pictures do not lag behind.
func TestKeysShareAPicture(t *testing.T) {
	t.Setenv("TERM", "xterm-256color")
	w := &wire{hungUp: make(chan struct{}), keys: make(chan string)}
	screen, err := tcell.NewTerminfoScreenFromTty(w, tcell.OptNegotiation(false))
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Fini()
	const keys = 100
	w.stopped, w.pictures = make(chan struct{}), 0
	p := program{agent: silent{}, terminal: screen, styles: styles(screen.Colors()), messages: make(chan Message), every: seldom}
	p.model.Handle(Answered{status(keys, 0), seldom}, start)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- p.loop(ctx) }()
	w.keys <- strings.Repeat("j", keys)
	for len(screen.EventQ()) < keys {
		time.Sleep(time.Millisecond)
	}
	close(w.stopped)
	for len(screen.EventQ()) > 0 {
		time.Sleep(time.Millisecond)
	}
	w.keys <- "q"
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pictures > 5 {
		t.Errorf("%d keys have %d pictures", keys, w.pictures)
	}
}
