package waypoint

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

func TestFailedTransactionGrantsNothing(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		mustMap(t, w, aliceAt, serverNumber(1), 443)
		h.table.Fail(unix.ENOMEM)
		if code := refusal(t, w, aliceAt, serverNumber(2)); code != wire.Internal {
			t.Errorf("refused by %v", code)
		}
		if code := refusal(t, w, aliceAt, serverNumber(1)); code != wire.Internal {
			t.Errorf("renewal refused by %v", code)
		}
		s, err := w.Snapshot()
		if err != nil || s.Mappings != 1 || len(s.Problems) != 1 || s.Problems[0].Fix == "" {
			t.Errorf("snapshot %+v, %v", s, err)
		}
		h.table.Fail(nil)
		mustMap(t, w, aliceAt, serverNumber(2), 444)
		if s, _ := w.Snapshot(); len(s.Problems) > 0 {
			t.Errorf("problems stay: %+v", s.Problems)
		}
	})
}

// A mapping in the kernel that the index does not know (the kernel's listing missed it) still occupies its port,
// and all others in the batch are served.
func TestUnknownMappingInTheKernel(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		mustMap(t, w, bobAt, serverNumber(1), 443)
		hidden := rules.Mapping{Client: aliceAt.Addr, Port: 443, Server: serverNumber(9), Member: 1, Left: time.Minute}
		h.table.Put(hidden)
		if g := mustMap(t, w, aliceAt, serverNumber(2), 443); g.Port == 443 {
			t.Errorf("the hidden mapping's port: %+v", g)
		}
		if s, _ := w.Snapshot(); s.Mappings != 3 {
			t.Errorf("%d mappings", s.Mappings)
		}
	})
}

func TestTableRemovedByOthers(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		mustMap(t, w, aliceAt, serverNumber(1), 443)
		before := h.table.String()
		h.table.Flush()
		synctest.Wait() // the clock stands still
		if h.table.String() != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, h.table)
		}
		h.table.FlushUnnoticed()
		time.Sleep(2 * tableCheck)
		if strings.Count(h.table.String(), "\n") != strings.Count(before, "\n") {
			t.Errorf("before:\n%s\nafter:\n%s", before, h.table)
		}
		h.table.Flush()
		mustMap(t, w, aliceAt, serverNumber(2), 444)
		if table := h.table.String(); !strings.Contains(table, "8.0.0.1") || !strings.Contains(table, "8.0.0.2") || !strings.Contains(table, "alice") {
			t.Errorf("the table:\n%s", table)
		}
	})
}

func TestFlows(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		mustMap(t, w, aliceAt, serverNumber(1), 443)
		flow := func(port uint16, up, down uint64) netstate.Flow {
			return netstate.Flow{
				Origin: netstate.Tuple{Src: netip.AddrPortFrom(aliceAt.Addr, port), Dst: netip.AddrPortFrom(ownAddr, 443)},
				Reply:  netstate.Tuple{Src: serverNumber(1), Dst: netip.AddrPortFrom(ownAddr, port)},
				Mark:   rules.DefaultMarks.Mark(1, wire.Mapped), BytesOrigin: up, BytesReply: down,
			}
		}
		alice := func() MemberSnapshot {
			s, err := w.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			return s.Members[0]
		}
		tell := func(news flowNews) {
			h.events <- news
			synctest.Wait()
		}
		tell(flowNews{events: []netstate.FlowEvent{{Flow: flow(1, 0, 0)}, {Flow: flow(2, 0, 0)}, {Flow: flow(3, 0, 0)}}})
		h.setFlows(flow(1, 10, 100), flow(2, 1, 1), flow(3, 1, 1))
		if m := alice(); m.Flows != 3 || m.BytesFromClient != 12 || m.BytesToClient != 102 {
			t.Errorf("open: %+v", m)
		}
		tell(flowNews{events: []netstate.FlowEvent{{Flow: flow(1, 20, 200), Closed: true}}})
		h.setFlows(flow(2, 1, 1), flow(3, 1, 1))
		if m := alice(); m.Flows != 2 || m.BytesFromClient != 22 || m.BytesToClient != 202 {
			t.Errorf("one closed: %+v", m)
		}
		// Events are lost: meanwhile 2 ended and 4 began.
		h.setFlows(flow(3, 1, 1), flow(4, 5, 5))
		tell(flowNews{lost: true})
		if m := alice(); m.Flows != 2 || m.BytesFromClient != 26 {
			t.Errorf("after the loss: %+v", m)
		}
		// The end of a flow whose beginning was lost.
		tell(flowNews{events: []netstate.FlowEvent{{Flow: flow(5, 7, 7), Closed: true}}})
		if m := alice(); m.Flows != 2 || m.BytesFromClient != 33 {
			t.Errorf("an unknown flow's end: %+v", m)
		}
		if err := w.Expel("alice"); err != nil || len(h.deleted) != 1 || h.deleted[0] != rules.DefaultMarks.Of(1) {
			t.Errorf("expelled: %v, %+v", err, h.deleted)
		}
		synctest.Wait() // until the log is written
		var events []attribution.Event
		for _, e := range h.entries(t) {
			events = append(events, e.Event)
			if e.Member != "alice" || e.Serial != "5e" {
				t.Errorf("not attributed: %+v", e)
			}
			if known := e.Event == attribution.FlowClosed && e.ClientPort != 2; known != (e.BytesFromClient != nil) {
				t.Errorf("bytes: %+v", e)
			}
		}
		want := []attribution.Event{attribution.MappingGranted,
			attribution.FlowOpened, attribution.FlowOpened, attribution.FlowOpened, attribution.FlowClosed,
			attribution.FlowFound, attribution.FlowClosed, attribution.FlowClosed,
			attribution.MappingRemoved, attribution.MemberExpelled}
		if len(events) != len(want) {
			t.Fatalf("events %v, want %v", events, want)
		}
		for i := range want {
			if events[i] != want[i] {
				t.Errorf("event %d is %v, want %v", i, events[i], want[i])
			}
		}
	})
}

func TestUnwritableLogStopsNothing(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		h.config.Log = "/proc/nowhere/log"
		w := h.start(t)
		mustMap(t, w, aliceAt, serverNumber(1), 443)
		synctest.Wait()
		s, err := w.Snapshot()
		if err != nil || len(s.Problems) != 1 || s.Problems[0].Code != "attribution-log" || !strings.Contains(s.Problems[0].Text, "1 entries were lost") {
			t.Errorf("snapshot %+v, %v", s, err)
		}
		if err := w.Close(); err == nil {
			t.Error("closing does not tell either")
		}
	})
}

func TestClosedAndCancelled(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		resume := make(chan struct{})
		go func() { _ = w.ask(func() { <-resume }) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, r := w.Map(ctx, aliceAt, wire.MapRequest{ID: 3, Server: serverNumber(1)}); r == nil || r.Code != wire.Busy || r.ID != 3 {
			t.Errorf("cancelled: %v", r)
		}
		close(resume)
		synctest.Wait()
		mustClose(t, w)
		if code := refusal(t, w, aliceAt, serverNumber(1)); code != wire.ShuttingDown {
			t.Errorf("after closing: %v", code)
		}
		if _, err := w.Snapshot(); !errors.Is(err, errStopped) {
			t.Errorf("after closing: %v", err)
		}
		if err := w.Expel("alice"); !errors.Is(err, errStopped) {
			t.Errorf("after closing: %v", err)
		}
	})
}

func TestBadPolicyIsAnError(t *testing.T) {
	h := newFakeHost(t)
	_, err := start(Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, kernel{rules: h.table}, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "127.0.0.0/8") {
		t.Error(err)
	}
}
