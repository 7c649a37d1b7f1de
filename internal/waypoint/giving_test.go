package waypoint

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// told collects what the waypoint reports about itself.
type told struct{ standings []giving.Standing }

func (x *told) tell(s giving.Standing) { x.standings = append(x.standings, s) }

func (x *told) last(t *testing.T) giving.Standing {
	t.Helper()
	synctest.Wait()
	if len(x.standings) == 0 {
		t.Fatal("nothing was told")
	}
	return x.standings[len(x.standings)-1]
}

// tunnelAddrs are a tunnel's.
func tunnelAddrs(number int) []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 0, byte(number)}), netip.AddrFrom16([16]byte{0xfd, 15: byte(number)})}
}

// wantClosed checks that requests are refused with this code, or not at all if it is zero.
func wantClosed(t *testing.T, w *Waypoint, h *fakeHost, code wire.Code, retry time.Duration) {
	t.Helper()
	synctest.Wait()
	_, refusal := w.Map(t.Context(), bobAt, wire.MapRequest{ID: 7, Server: serverNumber(99), Proposed: 443})
	switch {
	case code == 0 && refusal != nil:
		t.Errorf("refused: %v", refusal)
	case code != 0 && (refusal == nil || refusal.Code != code || (refusal.RetryAfter-retry).Abs() > 2*time.Second || refusal.ID != 7):
		t.Errorf("got %v, want %v for %v", refusal, code, retry)
	}
	if h.table.Closed() != (code != 0) {
		t.Errorf("the kernel refuses new connections: %v", h.table.Closed())
	}
}

// Virtual time begins on a Saturday at midnight, UTC.
func TestHoursOpenAndClose(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		begin := time.Now()
		clock := begin.Hour()*60 + begin.Minute() // where tests run, in minutes
		at := func(hours int) int { return (clock + hours*60) % (24 * 60) }
		var x told
		h.config.Hours, h.config.Tell = []units.Window{{First: time.Monday, Last: time.Sunday, From: at(2), To: at(5)}}, x.tell
		w := h.start(t)
		if s := x.last(t); s.Cause != giving.OutsideHours || !s.Until.Equal(begin.Add(2*time.Hour)) {
			t.Errorf("told %+v", s)
		}
		wantClosed(t, w, h, wire.OutsideHours, 2*time.Hour)
		time.Sleep(2*time.Hour + tableCheck)
		if s := x.last(t); s.Closed() {
			t.Errorf("told %+v", s)
		}
		wantClosed(t, w, h, 0, 0)
		h.setFlows(netstate.Flow{})
		time.Sleep(3 * time.Hour)
		wantClosed(t, w, h, wire.OutsideHours, 21*time.Hour)
		if len(x.standings) != 3 || len(h.deletedMarks()) > 0 {
			t.Errorf("told %d times; connections ended: %v", len(x.standings), h.deletedMarks())
		}
		mustClose(t, w)
	})
}

// The next agent remembers Off, also if it finds another table, and it ends by itself.
func TestSwitchedOff(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		var x told
		h.config.Tell = x.tell
		w := h.start(t)
		wantClosed(t, w, h, 0, 0)
		if err := w.SwitchOff(time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if s := x.last(t); s.Cause != giving.SwitchedOff || !s.Until.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("told %+v", s)
		}
		wantClosed(t, w, h, wire.SwitchedOff, time.Hour)
		mustClose(t, w)
		time.Sleep(30 * time.Minute)
		h.table.Flush()
		w = h.start(t)
		wantClosed(t, w, h, wire.SwitchedOff, 30*time.Minute)
		if err := w.SwitchOn(); err != nil {
			t.Fatal(err)
		}
		wantClosed(t, w, h, 0, 0)
		if err := w.SwitchOff(time.Time{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		wantClosed(t, w, h, wire.SwitchedOff, 0)
		if err := w.SwitchOff(time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour + tableCheck)
		wantClosed(t, w, h, 0, 0)
		mustClose(t, w)
	})
}

// A member's tunnel stays while the waypoint is closed, also over a restart; a member without one gets none.
func TestClosedWaypointKeepsTunnels(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		admit := func(p session.Peer, number int) *wire.Refusal {
			return w.AdmitTunnel(t.Context(), p, wire.WireGuard, tunnelAddrs(number), 10*time.Minute)
		}
		if r := admit(aliceAt, 1); r != nil {
			t.Fatal(r)
		}
		if err := w.SwitchOff(time.Time{}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if r := admit(aliceAt, 1); r != nil {
				t.Errorf("a renewal: %v", r)
			}
			for _, r := range []*wire.Refusal{admit(bobAt, 2), admit(bobAt, 1), admit(aliceAt, 3)} {
				if !errors.Is(r, &wire.Refusal{Code: wire.SwitchedOff}) {
					t.Errorf("another tunnel: %v", r)
				}
			}
			mustClose(t, w)
			w = h.start(t)
		}
		mustClose(t, w)
	})
}

func TestClosedWaypointAdmitsNobodyInBand(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		h.config.InBand = InBandOpen
		w := h.start(t)
		w.SessionUp(aliceAt)
		ask := func() *wire.Refusal {
			_, r := w.InBand(context.Background(), aliceAt, wire.TunnelRequest{ID: 3, Kind: wire.InBand})
			return r
		}
		if err := w.SwitchOff(time.Time{}); err != nil {
			t.Fatal(err)
		}
		if r := ask(); !errors.Is(r, &wire.Refusal{Code: wire.SwitchedOff}) {
			t.Errorf("refusal %v", r)
		}
		if err := w.SwitchOn(); err != nil {
			t.Fatal(err)
		}
		if r := ask(); r != nil {
			t.Error(r)
		}
		mustClose(t, w)
	})
}

// A month's quota is one for all agents of the month, whatever becomes of the table.
func TestQuota(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		h.config.Quota = 1000
		w := h.start(t)
		used := func(want uint64) {
			t.Helper()
			synctest.Wait()
			if s, err := w.Snapshot(); err != nil || s.Giving.Used != want || s.Giving.Quota != 1000 {
				t.Errorf("used %d of %d, want %d; %v", s.Giving.Used, s.Giving.Quota, want, err)
			}
		}
		h.table.Forward(100)
		time.Sleep(tableCheck)
		used(100)

		// The agent is killed, and the kernel keeps counting.
		kill(t, w, h)
		h.table.Forward(50)
		w = h.start(t)
		used(150)

		// A power cut: the table is gone, and half a minute's counting at most.
		time.Sleep(2 * saveEvery)
		h.table.Forward(50)
		kill(t, w, h)
		h.table.Flush()
		w = h.start(t)
		used(150)

		// Somebody flushes it under a running agent.
		h.table.Forward(50)
		time.Sleep(tableCheck)
		used(200)
		h.table.Flush()
		time.Sleep(tableCheck)
		used(200)
		if err := h.table.SetUsed(0); err != nil { // or sets it back
			t.Fatal(err)
		}
		time.Sleep(tableCheck)
		used(200)

		// All of it.
		h.table.Forward(800)
		time.Sleep(tableCheck)
		used(1000)
		wantClosed(t, w, h, wire.QuotaTraffic, time.Until(giving.NextMonth(time.Now())))
		if got := h.deletedMarks(); !slices.Equal(got, []netstate.MarkMatch{rules.DefaultMarks.Ours()}) {
			t.Errorf("connections ended: %v", got)
		}
		mustClose(t, w)
		w = h.start(t)
		wantClosed(t, w, h, wire.QuotaTraffic, time.Until(giving.NextMonth(time.Now())))

		// The month ends, while an agent runs.
		mustClose(t, w)
		next := giving.NextMonth(time.Now())
		time.Sleep(time.Until(next) - time.Hour)
		w = h.start(t)
		used(1000)
		time.Sleep(time.Hour + tableCheck)
		used(0)
		wantClosed(t, w, h, 0, 0)
		mustClose(t, w)

		// A higher quota makes another table, which keeps the used amount.
		h.table.Forward(10)
		h.config.Quota = 2000
		w = h.start(t)
		if s, err := w.Snapshot(); err != nil || s.Giving.Used != 10 {
			t.Errorf("used %d, %v", s.Giving.Used, err)
		}
		mustClose(t, w)
	})
}

// kill ends an agent that has no time to save anything.
func kill(t *testing.T, w *Waypoint, h *fakeHost) {
	t.Helper()
	saved, err := os.ReadFile(h.config.Memory)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	mustClose(t, w)
	if saved == nil {
		if err := os.RemoveAll(h.config.Memory); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.WriteFile(h.config.Memory, saved, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLowerQuotaThanWasUsed(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		h.config.Quota = 1000
		w := h.start(t)
		h.table.Forward(600)
		time.Sleep(tableCheck)
		mustClose(t, w)
		h.config.Quota = 500
		w = h.start(t)
		wantClosed(t, w, h, wire.QuotaTraffic, time.Until(giving.NextMonth(time.Now())))
		mustClose(t, w)
		h.config.Quota = 0
		w = h.start(t)
		wantClosed(t, w, h, 0, 0)
		mustClose(t, w)
	})
}

// Whatever the file contains, an agent starts, or says what to do. Nothing is given that may have been forbidden.
func TestDamagedMemory(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		if err := os.WriteFile(h.config.Memory, []byte(`{"version":1,"off":{"si`), 0o600); err != nil {
			t.Fatal(err)
		}
		w := h.start(t)
		for range 2 {
			wantClosed(t, w, h, wire.SwitchedOff, 0)
			mustClose(t, w)
			w = h.start(t)
		}
		if _, err := os.Stat(h.config.Memory + ".damaged"); err != nil {
			t.Error(err)
		}
		if err := w.SwitchOn(); err != nil {
			t.Fatal(err)
		}
		wantClosed(t, w, h, 0, 0)
		if s, err := w.Snapshot(); err != nil || len(s.Problems) > 0 {
			t.Errorf("problems %v, %v", s.Problems, err)
		}
		mustClose(t, w)
	})
}

// Where nothing can be stored the command works, and says that it is not permanent.
func TestMemoryThatCannotBeWritten(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		h.config.Memory = filepath.Join(t.TempDir(), "later", "given.json")
		w := h.start(t)
		if err := os.WriteFile(filepath.Dir(h.config.Memory), nil, 0o600); err != nil { // a file where the folder is to be
			t.Fatal(err)
		}
		if err := w.SwitchOff(time.Time{}); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("got %v", err)
		}
		wantClosed(t, w, h, wire.SwitchedOff, 0)
		if s, err := w.Snapshot(); err != nil || len(s.Problems) != 1 || s.Problems[0].Code != string(problemMemory) {
			t.Errorf("problems %v, %v", s.Problems, err)
		}
		if err := os.Remove(filepath.Dir(h.config.Memory)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(saveEvery + tableCheck)
		mustClose(t, w)
		w = h.start(t)
		wantClosed(t, w, h, wire.SwitchedOff, 0)
		mustClose(t, w)
	})
}

// A change that could not be written into the table is written as soon as that works.
func TestClosingIsTriedAgain(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		h.table.Fail(unix.ENOMEM)
		if err := w.SwitchOff(time.Time{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * tableCheck)
		h.table.Fail(nil)
		time.Sleep(2 * tableCheck)
		wantClosed(t, w, h, wire.SwitchedOff, 0)
		mustClose(t, w)
	})
}
