package top

import (
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gdamore/tcell/v3"
)

// wire is a terminal that keeps what is sent to it, and on which nobody types.
type wire struct {
	mu     sync.Mutex
	sent   strings.Builder
	hungUp chan struct{}
	once   sync.Once
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

func (w *wire) Read([]byte) (int, error) {
	<-w.hungUp
	return 0, io.EOF
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent.Write(p)
}

// take returns what was sent since the last call.
func (w *wire) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.sent.Reset()
	return w.sent.String()
}

// With 1,000 connections, all of which have other rates in each state, an update is small enough for a slow line. It never clears the
// screen, which would flicker.
func TestUpdatesAreSmall(t *testing.T) {
	t.Setenv("TERM", "xterm-256color")
	w := &wire{hungUp: make(chan struct{})}
	screen, err := tcell.NewTerminfoScreenFromTty(w, tcell.OptNegotiation(false))
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Fini()
	const states, most = 30, 80 * 24 / 2
	var m Model
	sum := 0
	for i := range states {
		now := start.Add(time.Duration(i) * time.Second)
		m.Handle(Answered{status(1000, i), time.Second}, now)
		paint(screen, View(&m, now, 80, 24, Look{}), styles())
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
