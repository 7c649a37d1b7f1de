package runner

import (
	"log/slog"
	"os"
	"testing"
	"time"
)

func TestLateness(t *testing.T) {
	const second = time.Second
	steady := func(n int, late time.Duration) (echoes []echo) {
		for i := range n {
			echoes = append(echoes, echo{time.Duration(i) * echoInterval, late})
		}
		return echoes
	}
	quiet := steady(400, 100*time.Microsecond)
	slow := append(steady(100, 0), steady(400, 0)[100:]...)
	for i := 150; i < 160; i++ { // a tenth of a second in the second second
		slow[i].late = 20 * time.Millisecond
	}
	for _, test := range []struct {
		name     string
		echoes   []echo
		from, to time.Duration
		want     time.Duration
	}{
		{"quiet", quiet, 0, 4 * second, 100 * time.Microsecond},
		{"before the pause", slow, 0, second, 0},
		{"with the pause", slow, second, 2 * second, 20 * time.Millisecond},
		{"after it", slow, 2 * second, 4 * second, 0},
		{"nothing came back", nil, 0, second, echoLost},
		{"a tenth is lost", quiet[:360], 0, 4 * second, echoLost},
		{"early ones are not late", steady(100, -time.Millisecond), 0, second, 0},
		{"no time at all", quiet, second, second, 0},
	} {
		if got := lateness(test.echoes, test.from, test.to); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// The flow sees a machine's pause, here one of its link's making.
func TestReference(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("building a network needs root")
	}
	r, err := StartReference(t.Context(), "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	time.Sleep(300 * time.Millisecond)
	r.mu.Lock()
	echoes := len(r.echoes)
	r.mu.Unlock()
	if echoes == 0 {
		t.Fatal("nothing is echoed")
	}
	from := time.Now()
	if err := r.Net.LinkDown("reference", true); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	if got := r.Lateness(from); got != echoLost {
		t.Errorf("no echo came back, and the lateness is %v", got)
	}
}
