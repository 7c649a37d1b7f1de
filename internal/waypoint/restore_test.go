package waypoint

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// proven is a session of a peer's that has a name in the log.
func proven(p session.Peer, id byte) session.Peer {
	p.ID = uint64(id)
	p.Proof = &wire.Proof{Statement: wire.Statement{Collective: "test", Member: p.Name, Serial: p.Serial, Waypoint: "waypoint",
		Session: wire.SessionID{id}, Time: time.Now()}, Signature: make([]byte, 64)}
	return p
}

// sessionsOf returns the sessions that entries of these kinds name, in order; 0 means none.
func (h *fakeHost) sessionsOf(t *testing.T, events ...attribution.Event) (named []byte) {
	t.Helper()
	synctest.Wait() // until the log is written
	content, err := os.ReadFile(h.config.Log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(content) {
		var e struct {
			Event   attribution.Event
			Session wire.SessionID
		}
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(events, e.Event) {
			named = append(named, e.Session[0])
		}
	}
	return named
}

// Entries name the session over which the member made its last request for their subject, also after a restart.
func TestEntriesNameSessions(t *testing.T) {
	inside := netip.MustParseAddr("10.9.0.5")
	for kind, ask := range map[wire.Kind]func(t *testing.T, w *Waypoint, p session.Peer){
		wire.Mapped: func(t *testing.T, w *Waypoint, p session.Peer) { mustMap(t, w, p, serverNumber(1), 443) },
		wire.InBand: func(t *testing.T, w *Waypoint, p session.Peer) { mustInBand(t, w, p) },
		wire.WireGuard: func(t *testing.T, w *Waypoint, p session.Peer) {
			if refusal := w.AdmitTunnel(t.Context(), p, wire.WireGuard, []netip.Addr{inside}, time.Hour); refusal != nil {
				t.Fatal(refusal)
			}
		},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			run(t, func(t *testing.T, h *fakeHost) {
				h.config.InBand = InBandOpen
				from := aliceAt.Addr
				if kind == wire.WireGuard {
					from = inside
				}
				flow := func(port uint16) netstate.Flow {
					return netstate.Flow{
						Origin: netstate.Tuple{Src: netip.AddrPortFrom(from, port), Dst: netip.AddrPortFrom(ownAddr, 443)},
						Reply:  netstate.Tuple{Src: serverNumber(1), Dst: netip.AddrPortFrom(ownAddr, port)},
						Mark:   rules.DefaultMarks.Mark(1, kind),
					}
				}
				tell := func(events ...netstate.FlowEvent) {
					h.events <- flowNews{events: events}
					synctest.Wait()
				}
				w := h.start(t)
				first, second := proven(aliceAt, 1), proven(aliceAt, 2)
				w.SessionUp(first)
				ask(t, w, first)
				tell(netstate.FlowEvent{Flow: flow(1)})
				w.SessionUp(second)
				ask(t, w, second)
				tell(netstate.FlowEvent{Flow: flow(2)}, netstate.FlowEvent{Flow: flow(1), Closed: true})
				w.SessionDown(first)
				granted, opened := attribution.MappingGranted, []attribution.Event{attribution.FlowOpened, attribution.FlowClosed}
				if kind != wire.Mapped {
					granted = attribution.AdmissionGranted
				}
				if got := h.sessionsOf(t, granted); !slices.Equal(got, []byte{1}) {
					t.Errorf("granted over %v", got)
				}
				if got := h.sessionsOf(t, opened...); !slices.Equal(got, []byte{1, 2, 1}) {
					t.Errorf("connections over %v", got)
				}

				mustClose(t, w)
				h.setFlows(flow(2))
				w = h.start(t)
				defer mustClose(t, w)
				tell(netstate.FlowEvent{Flow: flow(3)})
				if got := h.sessionsOf(t, attribution.FlowFound); !slices.Equal(got, []byte{2}) {
					t.Errorf("found over %v", got)
				}
				third := proven(aliceAt, 3)
				w.SessionUp(third)
				ask(t, w, third)
				tell(netstate.FlowEvent{Flow: flow(4)})
				if got := h.sessionsOf(t, attribution.FlowOpened); !slices.Equal(got, []byte{1, 2, 2, 3}) {
					t.Errorf("connections over %v", got)
				}
			})
		})
	}
}
