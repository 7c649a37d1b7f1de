package openvpn

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

var errDied = errors.New("it died")

// runs records when openvpns are started, in virtual time. Each lives as long as the next number says,
// the last one and its successors until they are stopped; with a negative number it does not start.
type runs struct {
	lives   []time.Duration
	started []time.Duration // since the first
	began   time.Time
	closed  bool
}

func (r *runs) run(ctx context.Context, ready func()) error {
	if r.began.IsZero() {
		r.began = time.Now()
	}
	r.started = append(r.started, time.Since(r.began))
	life := time.Hour
	if len(r.lives) > 0 {
		life, r.lives = r.lives[0], r.lives[1:]
	}
	if life < 0 {
		return errDied
	}
	ready()
	select {
	case <-time.After(life):
		return errDied
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *runs) start(t *testing.T) *daemon {
	t.Helper()
	d, err := startDaemon(context.Background(), slog.New(slog.DiscardHandler), r.run, func() error { r.closed = true; return nil })
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (r *runs) end(t *testing.T, d *daemon) {
	t.Helper()
	if err := d.end(); err != nil || !r.closed {
		t.Errorf("ended with %v, closed %t", err, r.closed)
	}
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Each one lives a second and dies; sometimes it does not even start.
		r := &runs{}
		for i := range 40 {
			life := time.Second
			if i%2 == 1 {
				life = -1
			}
			r.lives = append(r.lives, life)
		}
		d := r.start(t)
		time.Sleep(5 * time.Minute)
		r.end(t, d)
		var want []time.Duration
		at := time.Duration(0)
		for i, seconds := range []int{0, 1, 2, 4, 8, 16, 32, 60, 60} {
			if i%2 == 1 {
				at += time.Second // lived
			}
			at += time.Duration(seconds) * time.Second
			want = append(want, at)
		}
		if len(r.started) < len(want) || !slices.Equal(r.started[:len(want)], want) {
			t.Errorf("started after %v, want %v", r.started, want)
		}
	})
}

func TestBackoffForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &runs{lives: []time.Duration{time.Second, time.Second, steady, time.Second}}
		d := r.start(t)
		time.Sleep(5 * time.Minute)
		r.end(t, d)
		want := []time.Duration{0, 2 * time.Second, 5 * time.Second, 36 * time.Second, 39 * time.Second}
		if !slices.Equal(r.started, want) {
			t.Errorf("started after %v, want %v", r.started, want)
		}
	})
}

// The first one that does not come to work is the error of the start.
func TestDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &runs{lives: []time.Duration{-1}}
		_, err := startDaemon(context.Background(), slog.New(slog.DiscardHandler), r.run, func() error { r.closed = true; return os.ErrExist })
		if !errors.Is(err, errDied) || !errors.Is(err, os.ErrExist) || !r.closed || len(r.started) != 1 {
			t.Errorf("%v, closed %t, started %d times", err, r.closed, len(r.started))
		}
	})
}

func TestProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &runs{lives: []time.Duration{time.Second}}
		d := r.start(t)
		if err := d.problem(); err != nil {
			t.Errorf("while it runs: %v", err)
		}
		time.Sleep(1500 * time.Millisecond)
		if err := d.problem(); !errors.Is(err, errDied) || err.Error() != "it died (next try in 1s)" {
			t.Errorf("while it waits: %v", err)
		}
		time.Sleep(time.Second)
		if err := d.problem(); err != nil {
			t.Errorf("while it runs again: %v", err)
		}
		r.end(t, d)
	})
}

func TestStopWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &runs{lives: []time.Duration{0}}
		d := r.start(t)
		synctest.Wait()
		began := time.Now()
		r.end(t, d)
		if took := time.Since(began); took != 0 || len(r.started) != 1 {
			t.Errorf("took %v, started %d", took, len(r.started))
		}
	})
}

// A restart that is asked for waits for nothing but the end of the old one.
func TestRestart(t *testing.T) {
	for name, life := range map[string]time.Duration{"of one that runs": time.Hour, "of one that waits to be tried again": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &runs{lives: []time.Duration{life}}
				d := r.start(t)
				synctest.Wait()
				d.restart()
				d.restart() // once more than can be seen to
				synctest.Wait()
				if !slices.Equal(r.started, []time.Duration{0, 0}) {
					t.Errorf("started after %v", r.started)
				}
				if err := d.problem(); err != nil {
					t.Errorf("it runs again, but: %v", err)
				}
				r.end(t, d)
			})
		})
	}
}

// An openvpn that does not end when it is told to is killed after a while.
func TestStopWaitsThenKills(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	c := n.serverConfig()
	var s *Server
	n.bob.Must(t, func() (err error) {
		s, err = StartServer(t.Context(), c)
		return err
	})
	pid := pidIn(t, n.bob)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "openvpn to stop", func() bool { return processState(pid) == 'T' })
	began := time.Now()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < killTime {
		t.Errorf("killed after %v, want %v", took, killTime)
	}
	if pids := pidsIn(t, n.bob); len(pids) != 0 {
		t.Errorf("still there: %v", pids)
	}
}
