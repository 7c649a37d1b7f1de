package waypoint

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Whatever sessions do, however much time passes, and whatever happens to the agent and the table: the kernel
// admits exactly the members with an unexpired grant and a session at an address, and has exactly the last keys of
// each session.
func TestInBandFollowsSessions(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFakeHost(t)
				h.config.InBand = mode
				// Through the interface only: rapid asks a *testing.T for its deadline, which fails in a bubble.
				rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
					h.table.Flush()
					h.forgetKeys()
					m := newInBandModel(h.start(t), mode)
					defer func() { mustClose(t, m.w) }()
					rt.Repeat(map[string]func(*rapid.T){
						"up":    m.up,
						"down":  m.down,
						"moves": m.moves,
						"asks":  m.asks,
						"time passes": func(rt *rapid.T) {
							time.Sleep(time.Duration(rapid.IntRange(1, 400).Draw(rt, "seconds")) * time.Second)
						},
						"the firewall is reloaded": func(*rapid.T) { h.table.Flush() },
						"the agent is killed": func(*rapid.T) {
							mustClose(t, m.w)
							*m = *newInBandModel(h.start(t), mode)
							time.Sleep(lease.AdoptedGrace)
						},
						"": func(rt *rapid.T) {
							time.Sleep(2*tableCheck + lease.ExpiryGrace)
							m.check(rt, h)
						},
					})
				})
			})
		})
	}
}

// inBandModel has the expected admissions.
type inBandModel struct {
	w        *Waypoint
	mode     InBandMode
	sessions map[uint64]session.Peer
	next     uint64
	grants   map[uint64][]time.Time // by session: when they end, the last two
}

func newInBandModel(w *Waypoint, mode InBandMode) *inBandModel {
	return &inBandModel{w: w, mode: mode, sessions: make(map[uint64]session.Peer), grants: make(map[uint64][]time.Time)}
}

func (m *inBandModel) up(rt *rapid.T) {
	m.next++
	p := overSession(rapid.SampledFrom([]string{"alice", "bob", "carol"}).Draw(rt, "member"), m.anyAddr(rt), m.next)
	m.w.SessionUp(p)
	m.sessions[m.next] = p
}

func (m *inBandModel) anyAddr(rt *rapid.T) netip.Addr {
	return clientNumber(rapid.IntRange(0, 2).Draw(rt, "address"))
}

func (m *inBandModel) any(rt *rapid.T) session.Peer {
	var ids []uint64
	for id := range m.sessions {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		rt.Skip("no session")
	}
	slices.Sort(ids)
	return m.sessions[rapid.SampledFrom(ids).Draw(rt, "session")]
}

func (m *inBandModel) down(rt *rapid.T) {
	p := m.any(rt)
	m.w.SessionDown(p)
	delete(m.sessions, p.ID)
	delete(m.grants, p.ID)
}

func (m *inBandModel) moves(rt *rapid.T) {
	before := m.any(rt)
	now := before
	now.Addr = m.anyAddr(rt)
	m.w.SessionMoved(before, now)
	m.sessions[now.ID] = now
	if now.Addr != before.Addr {
		delete(m.grants, now.ID)
	}
}

func (m *inBandModel) asks(rt *rapid.T) {
	p := m.any(rt)
	_, refusal := m.w.InBand(rt.Context(), p, wire.TunnelRequest{Local: p.Addr})
	others := 0
	for id := range m.grants {
		if m.sessions[id].Addr == p.Addr && m.sessions[id].Name != p.Name && m.live(id) {
			others++
		}
	}
	if refusal != nil {
		if m.mode != InBandOpen || others == 0 && m.settled() {
			rt.Fatalf("%+v: %v", p, refusal)
		}
		return
	}
	if m.mode == InBandOpen && others > 0 {
		rt.Fatalf("%+v: granted beside another member", p)
	}
	m.grants[p.ID] = append(m.grants[p.ID], time.Now().Add(m.w.loop.config.MappingLifetime))
	m.grants[p.ID] = m.grants[p.ID][max(0, len(m.grants[p.ID])-lease.KeysPerSession):]
}

// settled reports whether everything expired is also swept.
func (m *inBandModel) settled() bool {
	for _, ends := range m.grants {
		for _, end := range ends {
			if since := time.Since(end); since >= 0 && since < lease.ExpiryGrace+2*tableCheck {
				return false
			}
		}
	}
	return true
}

func (m *inBandModel) live(id uint64) bool { return m.keys(id) > 0 }

// keys counts a session's unexpired grants.
func (m *inBandModel) keys(id uint64) (n int) {
	for _, end := range m.grants[id] {
		if end.After(time.Now()) {
			n++
		}
	}
	return n
}

func (m *inBandModel) check(t *rapid.T, h *fakeHost) {
	t.Helper()
	wantAdmitted, wantKeys := make(map[string]bool), make(map[netip.Addr]int)
	for id, p := range m.sessions {
		if n := m.keys(id); n > 0 {
			wantAdmitted[p.Name+" "+p.Addr.String()] = true
			wantKeys[p.Addr] += n
		}
	}
	state, _, err := h.table.Load()
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[rules.MemberID]string)
	for _, x := range state.Members {
		names[x.ID] = x.Name
	}
	for _, a := range state.Admissions {
		who := names[a.Member] + " " + a.Addr.String()
		if !wantAdmitted[who] {
			t.Fatalf("%s is admitted; only %v should be", who, wantAdmitted)
		}
		delete(wantAdmitted, who)
	}
	if len(wantAdmitted) > 0 {
		t.Fatalf("%v are not admitted: %+v", wantAdmitted, state.Admissions)
	}
	if m.mode == InBandOpen {
		return
	}
	for i := range 3 {
		addr := clientNumber(i)
		slots := h.slots(addr)
		live := slices.DeleteFunc(slices.Clone(slots), func(s inband.Slot) bool { return !s.Expires.After(time.Now()) })
		if len(live) != wantKeys[addr] {
			t.Fatalf("%v has %d keys, want %d", addr, len(live), wantKeys[addr])
		}
		for _, s := range slots {
			id, kind, ours := rules.DefaultMarks.OfMark(s.Mark)
			if !ours || kind != wire.InBand || names[id] == "" || s.Key == (inband.Key{}) {
				t.Fatalf("a key of %+v", s)
			}
		}
	}
}

func clientNumber(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
