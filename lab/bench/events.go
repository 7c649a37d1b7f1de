package bench

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/lab/testbed"
)

// watcher listens to a host's MPTCP events independently of its agent. It notes the times of the events of each
// connection that the host opened.
type watcher struct {
	kernel *mptcp.Namespace
	stop   context.CancelFunc
	ended  chan error

	mu          sync.Mutex
	connections map[uint32]*observed // by token, of the latest connection that had it
	seen        eventCounts
	news        chan struct{}
}

// observed is the observed lifetime of one connection.
type observed struct {
	established, joined time.Time // zero: not seen
	local, remote       netip.AddrPort
	joins               int // subflows that came up
}

// eventCounts counts the observed events of all connections.
type eventCounts struct {
	established, joined int // connections, and those among them that got a subflow
	twice               int // connections that got more than one
	alive, mostAlive    int // connections at present, and the most at a time
	lost                int // times that the kernel dropped events
}

// watchEvents begins to listen on a host.
func watchEvents(h *testbed.Host, log *slog.Logger) (*watcher, error) {
	w := &watcher{ended: make(chan error, 1), connections: map[uint32]*observed{}, news: make(chan struct{}, 1)}
	var err error
	if w.kernel, err = testbed.On(h, func() (*mptcp.Namespace, error) { return mptcp.Open(log) }); err != nil {
		return nil, fmt.Errorf("watch the events of %s: %w", h.Name(), err)
	}
	var ctx context.Context
	ctx, w.stop = context.WithCancel(context.Background())
	events := make(chan mptcp.Event, 1024)
	go func() {
		defer close(events)
		w.ended <- w.kernel.Listen(ctx, events)
	}()
	go func() {
		for ev := range events {
			w.note(ev, time.Now())
		}
	}()
	return w, nil
}

func (w *watcher) note(ev mptcp.Event, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.connections[ev.Token]
	switch ev.Kind {
	case mptcp.Established:
		if ev.ServerSide {
			return
		}
		w.connections[ev.Token] = &observed{established: now}
		w.seen.established++
		w.seen.alive++
		w.seen.mostAlive = max(w.seen.mostAlive, w.seen.alive)
	case mptcp.SubflowEstablished:
		if l == nil {
			return
		}
		switch l.joins++; l.joins {
		case 1:
			l.joined, l.local, l.remote = now, ev.Local, ev.Remote
			w.seen.joined++
		case 2:
			w.seen.twice++
		}
	case mptcp.Closed:
		if l != nil {
			w.seen.alive--
			delete(w.connections, ev.Token)
		}
	case mptcp.EventsLost:
		w.seen.lost++
	}
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// counts returns the counts so far.
func (w *watcher) counts() eventCounts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

// close stops listening. The counts remain.
func (w *watcher) close() error {
	w.stop()
	err := <-w.ended
	if closing := w.kernel.Close(); err == nil {
		err = closing
	}
	return err
}

// forget clears the counts.
func (w *watcher) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.connections = map[uint32]*observed{}
}

// nextJoin waits until the only connection since the last forget has its subflow. It returns the time since the
// connection could have subflows, and the subflow's addresses.
func (w *watcher) nextJoin(ctx context.Context) (took time.Duration, local, remote netip.AddrPort, err error) {
	const patience = 5 * time.Second
	late := time.After(patience)
	for {
		w.mu.Lock()
		for _, l := range w.connections {
			if !l.joined.IsZero() {
				w.mu.Unlock()
				return l.joined.Sub(l.established), l.local, l.remote, nil
			}
		}
		w.mu.Unlock()
		select {
		case <-w.news:
		case <-late:
			return 0, local, remote, fmt.Errorf("no subflow came up in %v", patience)
		case <-ctx.Done():
			return 0, local, remote, context.Cause(ctx)
		}
	}
}
