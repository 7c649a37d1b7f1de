package openvpn

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// fakeChild is an openvpn in virtual time.
type fakeChild struct {
	done       chan struct{}
	deaf       bool // does not end when told to
	killed     bool
	terminated time.Time
}

func newFakeChild() *fakeChild { return &fakeChild{done: make(chan struct{})} }

func (c *fakeChild) terminate() {
	c.terminated = time.Now()
	if !c.deaf {
		c.die()
	}
}
func (c *fakeChild) kill()                  { c.killed = true; c.die() }
func (c *fakeChild) die()                   { close(c.done) }
func (c *fakeChild) ended() <-chan struct{} { return c.done }
func (c *fakeChild) err() error             { return errors.New("it died") }

// start runs a daemon whose openvpns come from launch; the result ends it and waits for that.
func startDaemon(launch func() (child, error), first child) (d *daemon, downs *[]time.Duration, stop func()) {
	downs = new([]time.Duration)
	d = newDaemon(func(context.Context) (child, error) { return launch() },
		func(_ error, retry time.Duration) { *downs = append(*downs, retry) }, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); d.run(ctx, first) }()
	return d, downs, func() { cancel(); <-done }
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Each one lives a second and dies; sometimes it does not even start.
		count := 0
		launch := func() (child, error) {
			count++
			if count%2 == 0 {
				return nil, errors.New("it does not start")
			}
			c := newFakeChild()
			time.AfterFunc(time.Second, c.die)
			return c, nil
		}
		first, _ := launch()
		_, downs, stop := startDaemon(launch, first)
		time.Sleep(5 * time.Minute)
		stop()
		var want []time.Duration
		for _, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60, 60} {
			want = append(want, time.Duration(seconds)*time.Second)
		}
		if len(*downs) < len(want) || !slices.Equal((*downs)[:len(want)], want) {
			t.Errorf("waited %v, want %v", *downs, want)
		}
	})
}

func TestBackoffForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lives := []time.Duration{time.Second, time.Second, steady, time.Second}
		launch := func() (child, error) {
			c := newFakeChild()
			if len(lives) > 0 {
				time.AfterFunc(lives[0], c.die)
				lives = lives[1:]
			}
			return c, nil
		}
		first, _ := launch()
		_, downs, stop := startDaemon(launch, first)
		time.Sleep(5 * time.Minute)
		stop()
		want := []time.Duration{time.Second, 2 * time.Second, time.Second, 2 * time.Second}
		if !slices.Equal(*downs, want) {
			t.Errorf("waited %v, want %v", *downs, want)
		}
	})
}

func TestStopWaitsThenKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeChild()
		c.deaf = true
		_, _, stop := startDaemon(func() (child, error) { t.Error("another was started"); return nil, errors.New("no") }, c)
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); !c.killed || took != killTime {
			t.Errorf("killed %t after %v, want that after %v", c.killed, took, killTime)
		}
	})
}

func TestStopWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeChild()
		c.die()
		_, _, stop := startDaemon(func() (child, error) { t.Error("another was started"); return nil, errors.New("no") }, c)
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v", took)
		}
	})
}

// A restart that is asked for waits for nothing but the end of the old one.
func TestRestart(t *testing.T) {
	for name, dead := range map[string]bool{"of one that runs": false, "of one that waits to be tried again": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var second *fakeChild
				first := newFakeChild()
				d, downs, stop := startDaemon(func() (child, error) { second = newFakeChild(); return second, nil }, first)
				if dead {
					first.die()
				}
				synctest.Wait()
				began := time.Now()
				d.restart()
				d.restart() // once more than can be seen to
				synctest.Wait()
				if second == nil || time.Since(began) != 0 {
					t.Fatal("no other openvpn was started at once")
				}
				if dead != (len(*downs) == 1) || !dead && first.terminated.IsZero() {
					t.Errorf("%d failures, the first one was told to end at %v", len(*downs), first.terminated)
				}
				stop()
			})
		})
	}
}
