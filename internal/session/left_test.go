package session

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// A host is without a network for longer than its session lives, and then has another address. The waypoint is told of
// the earlier address, after it has noticed the end of the earlier session.
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
			time.Sleep(pingEvery + 500*time.Millisecond) // after a pong, the waypoint has received everything before it
			r.cut.Store(true)
			m.awaitProblem(Lost)
			time.Sleep(100 * time.Millisecond) // its last messages are lost as well
			back, lines := test.back, len(test.want)-1
			if !back.IsValid() { // the waypoint has noticed it before
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

// await waits until the journal has n lines.
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

// The earlier address is sent only once, because it causes work for the waypoint. A member can end only its own
// sessions.
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
