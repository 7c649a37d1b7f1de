package session

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// A host that is without a network for longer than its session lives comes back with another one, from
// elsewhere. The waypoint hears where it no longer is, after it knows that the old session has ended.
func TestBrokenSessionIsLeft(t *testing.T) {
	t.Parallel()
	elsewhere := netip.MustParseAddr("127.0.0.9")
	for name, test := range map[string]struct {
		back netip.Addr
		want []string
	}{
		"elsewhere":     {elsewhere, []string{"up 127.0.0.1", "up 127.0.0.9", "down 127.0.0.1", "left 127.0.0.1 for 127.0.0.9", "down 127.0.0.9"}},
		"where it was":  {netip.MustParseAddr("127.0.0.1"), []string{"up 127.0.0.1", "up 127.0.0.1", "down 127.0.0.1", "down 127.0.0.1"}},
		"not a session": {netip.Addr{}, []string{"up 127.0.0.1", "down 127.0.0.1", "up 127.0.0.9", "left 127.0.0.1 for 127.0.0.9", "down 127.0.0.9"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t)
			j := &journal{}
			w := startServer(t, served{Identity: a.identity("bob"), Handler: j})
			r := startRelay(t, w.at)
			m := startClient(t, a.identity("alice"), "bob", r.at)
			m.awaitUp()
			time.Sleep(pingEvery + 500*time.Millisecond) // a pong says that the waypoint knows all that was said
			r.cut.Store(true)
			m.awaitProblem(Lost)
			time.Sleep(100 * time.Millisecond) // what it said last is lost too
			back, lines := test.back, len(test.want)-1
			if !back.IsValid() { // the waypoint has noticed by itself before
				back = elsewhere
				j.await(t, 2)
			}
			r.rebind(back)
			r.cut.Store(false)
			m.awaitUp()
			j.await(t, lines)
			m.Close()
			w.stop()
			if diff := cmp.Diff(test.want, j.lines); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// await waits until there are so many lines.
func (j *journal) await(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(idleTimeout + 10*time.Second); ; time.Sleep(10 * time.Millisecond) {
		j.mu.Lock()
		lines := slices.Clone(j.lines)
		j.mu.Unlock()
		if len(lines) >= n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("only %q", lines)
		}
	}
}

// Where a session was before is said once, as every time is work for the waypoint; and a member ends no
// sessions but its own.
func TestLeftIsBounded(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	j := &journal{}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: j})
	startClient(t, a.identity("carol"), "bob", w.at).awaitUp()
	carols := addrPort(w.registry.all()[0].conn.RemoteAddr())
	o := rawClient(t, a.identity("alice"), w.at)
	from := netip.MustParseAddrPort("192.0.2.1:7")
	o.say(t, wire.Left{From: carols}, wire.Left{From: from}, request(8))
	if m, ok := o.hear(t).(wire.Refusal); !ok || m.Code != wire.Malformed {
		t.Errorf("said twice: heard %+v", m)
	}
	if m, ok := o.hear(t).(wire.MapGrant); !ok || m.ID != 8 {
		t.Errorf("after that: heard %+v", m)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if diff := cmp.Diff([]string{"up 127.0.0.1", "up 127.0.0.1"}, j.lines); diff != "" {
		t.Error(diff)
	}
	if live := w.live(); len(live) != 2 {
		t.Errorf("sessions: %+v", live)
	}
}
