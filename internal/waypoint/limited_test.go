package waypoint

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
)

// asks returns the refusal of a mapping, or nil.
func asks(t *testing.T, w *Waypoint, p session.Peer, server netip.AddrPort) *wire.Refusal {
	t.Helper()
	synctest.Wait()
	_, refusal := w.Map(t.Context(), p, wire.MapRequest{ID: 7, Server: server})
	return refusal
}

// A member whose servers are limited gets mappings to these only, and nothing that leads anywhere; others get both. A
// reload ends what it no longer may have.
func TestServersOfOneMember(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		h.config.InBand = InBandOpen
		w := h.start(t)
		w.SessionUp(bobAt)
		for _, server := range []netip.AddrPort{serverNumber(1), serverNumber(2)} {
			if r := asks(t, w, bobAt, server); r != nil {
				t.Fatal(r)
			}
		}
		if _, r := w.InBand(t.Context(), bobAt, wire.TunnelRequest{ID: 7}); r != nil {
			t.Fatal(r)
		}
		only := netip.PrefixFrom(serverNumber(1).Addr(), serverNumber(1).Addr().BitLen())
		terms := Terms{Members: map[string]MemberTerms{"bob": {Servers: egress.Narrowing{Only: []netip.Prefix{only}, Ports: []uint16{serverNumber(1).Port()}}}}}
		if err := w.Reconfigure(terms); err != nil {
			t.Fatal(err)
		}
		if m, err := w.Mappings(); err != nil || len(m) != 1 || m[0].Server != serverNumber(1) {
			t.Errorf("after the reload: %+v, %v", m, err)
		}
		s, err := w.Snapshot()
		if err != nil || s.InBand != 0 {
			t.Errorf("in-band detours from %d addresses, %v", s.InBand, err)
		}
		if l := s.Limited; len(l) != 1 || l[0].Name != "bob" || !slices.Equal(l[0].Servers.Only, []netip.Prefix{only}) || l[0].Standing.Closed() {
			t.Errorf("what is limited: %+v", l)
		}
		if r := asks(t, w, bobAt, serverNumber(1)); r != nil {
			t.Errorf("the server that is his: %v", r)
		}
		if r := asks(t, w, bobAt, serverNumber(2)); r == nil || r.Code != wire.DestinationForbidden || !strings.Contains(r.Message, "[[waypoint.member]]") {
			t.Errorf("another: %v", r)
		}
		if r := asks(t, w, bobAt, netip.AddrPortFrom(only.Addr(), 8080)); r == nil || !strings.Contains(r.Message, "limits your ports") {
			t.Errorf("another port: %v", r)
		}
		_, r := w.InBand(t.Context(), bobAt, wire.TunnelRequest{ID: 7})
		if r == nil || r.Code != wire.NotOffered || !strings.Contains(r.Message, "mapped detours only") {
			t.Errorf("in-band: %v", r)
		}
		if r := w.AdmitTunnel(t.Context(), bobAt, wire.WireGuard, tunnelAddrs(1), time.Minute); r == nil || r.Code != wire.NotOffered {
			t.Errorf("a tunnel: %v", r)
		}
		if r := asks(t, w, aliceAt, serverNumber(2)); r != nil {
			t.Errorf("alice: %v", r)
		}
		mustClose(t, w)
	})
}

// Outside of a member's hours the kernel resets its new connections, and it hears when it may ask again.
func TestHoursOfOneMember(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		clock := time.Now().Hour()*60 + time.Now().Minute()
		at := func(hours int) int { return (clock + hours*60) % (24 * 60) }
		h.config.Members = map[string]MemberTerms{"bob": {Hours: []units.Window{{First: time.Monday, Last: time.Sunday, From: at(2), To: at(5)}}}}
		w := h.start(t)
		time.Sleep(2 * tableCheck)
		r := asks(t, w, bobAt, serverNumber(1))
		if r == nil || r.Code != wire.NotOffered || r.RetryAfter != 10*time.Minute || !strings.Contains(r.Message, "other hours") {
			t.Errorf("before: %v", r)
		}
		time.Sleep(2 * tableCheck)
		if len(h.table.Stopped()) != 1 {
			t.Errorf("stopped in the kernel: %v", h.table.Stopped())
		}
		time.Sleep(2 * time.Hour)
		if r := asks(t, w, bobAt, serverNumber(1)); r != nil || len(h.table.Stopped()) > 0 {
			t.Errorf("within: %v, stopped %v", r, h.table.Stopped())
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if r := asks(t, w, bobAt, serverNumber(1)); r == nil || len(h.table.Stopped()) != 1 || len(h.deletedMarks()) > 0 {
			t.Errorf("after: %v, stopped %v, connections ended %v", r, h.table.Stopped(), h.deletedMarks())
		}
		if r := asks(t, w, aliceAt, serverNumber(1)); r != nil {
			t.Errorf("alice: %v", r)
		}
		mustClose(t, w)
	})
}

// When a member's quota is used up, its connections end and it opens none until the next month; the next agent knows, and
// counts nothing twice.
func TestQuotaOfOneMember(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		h.config.Members = map[string]MemberTerms{"bob": {Quota: 1000}}
		w := h.start(t)
		if r := asks(t, w, bobAt, serverNumber(1)); r != nil {
			t.Fatal(r)
		}
		bob := w.loop.leases.Known("bob").ID
		used := func(bytes uint64) {
			h.setFlows(netstate.Flow{
				Origin: netstate.Tuple{Src: netip.MustParseAddrPort("192.0.2.9:1000"), Dst: netip.MustParseAddrPort("192.0.2.1:443")},
				Mark:   h.config.marks().Mark(bob, wire.Mapped), BytesReply: bytes,
			})
		}
		used(600)
		h.events <- flowNews{lost: true} // so that connections are listed
		synctest.Wait()
		time.Sleep(2 * countEvery)
		if r := asks(t, w, bobAt, serverNumber(2)); r != nil {
			t.Errorf("below the quota: %v", r)
		}
		mustClose(t, w)
		w = h.start(t)
		time.Sleep(2 * countEvery)
		if r := asks(t, w, bobAt, serverNumber(3)); r != nil {
			t.Errorf("600 bytes were counted twice: %v", r)
		}
		used(1100)
		time.Sleep(2 * countEvery)
		r := asks(t, w, bobAt, serverNumber(4))
		if r == nil || r.Code != wire.NotOffered || !strings.Contains(r.Message, "quota") {
			t.Errorf("beyond the quota: %v", r)
		}
		if !slices.Contains(h.deletedMarks(), h.config.marks().Of(bob)) || len(h.table.Stopped()) != 1 {
			t.Errorf("ended: %v, stopped: %v", h.deletedMarks(), h.table.Stopped())
		}
		if r := asks(t, w, aliceAt, serverNumber(4)); r != nil {
			t.Errorf("alice: %v", r)
		}
		if s, err := w.Snapshot(); err != nil || len(s.Limited) != 1 || s.Limited[0].Used != 1100 || !s.Limited[0].Standing.Closed() {
			t.Errorf("what is limited: %+v, %v", s.Limited, err)
		}
		mustClose(t, w)
		w = h.start(t)
		if r := asks(t, w, bobAt, serverNumber(4)); r == nil {
			t.Error("the next agent does not know")
		}
		mustClose(t, w)
		time.Sleep(30*24*time.Hour + 12*time.Hour)
		w = h.start(t)
		if r := asks(t, w, bobAt, serverNumber(4)); r == nil {
			t.Error("on the last day of the month it is forgotten")
		}
		time.Sleep(24 * time.Hour)
		if r := asks(t, w, bobAt, serverNumber(4)); r != nil {
			t.Errorf("in the next month: %v", r)
		}
		mustClose(t, w)
	})
}

// A host that gets the name of another one begins with a quota of its own, also with the next agent. The former holder goes
// on with what it has used if it returns in the same month.
func TestQuotaFollowsTheHolder(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		h.config.Members = map[string]MemberTerms{"bob": {Quota: 1000}}
		first, next := bobAt, bobAt
		first.Key[0], next.Key[0] = 1, 2
		w := h.start(t)
		w.SessionUp(first)
		if r := asks(t, w, first, serverNumber(1)); r != nil {
			t.Fatal(r)
		}
		use := func(bytes uint64) {
			h.setFlows(netstate.Flow{
				Origin: netstate.Tuple{Src: netip.MustParseAddrPort("192.0.2.9:1000"), Dst: netip.MustParseAddrPort("192.0.2.1:443")},
				Mark:   h.config.marks().Mark(w.loop.leases.Known("bob").ID, wire.Mapped), BytesReply: bytes,
			})
			h.events <- flowNews{lost: true} // so that connections are listed
			synctest.Wait()
			time.Sleep(2 * countEvery)
		}
		used := func(want uint64, when string) {
			t.Helper()
			if s, err := w.Snapshot(); err != nil || len(s.Limited) != 1 || s.Limited[0].Used != want {
				t.Errorf("%s: %+v, %v, want %d bytes", when, s.Limited, err, want)
			}
		}
		again := func(p session.Peer) {
			mustClose(t, w)
			h.setFlows()
			w = h.start(t)
			w.SessionUp(p)
		}
		use(1100)
		used(1100, "the first holder")
		if r := asks(t, w, first, serverNumber(2)); r == nil {
			t.Error("the first holder gets more than its quota")
		}

		again(first)
		used(1100, "the first holder at the next agent")
		if err := w.Expel("bob"); err != nil {
			t.Fatal(err)
		}
		h.setFlows()
		w.SessionUp(next)
		used(0, "the next holder")
		if r := asks(t, w, next, serverNumber(3)); r != nil {
			t.Errorf("the next holder: %v", r)
		}
		use(300)
		used(300, "the next holder")
		again(next)
		used(300, "the next holder at the next agent")

		again(first)
		used(1100, "the first holder, back")
		if r := asks(t, w, first, serverNumber(4)); r == nil {
			t.Error("the first holder has a new quota")
		}
		mustClose(t, w)
		time.Sleep(31 * 24 * time.Hour)
		w = h.start(t)
		w.SessionUp(next)
		used(0, "in the next month")
		if n := len(w.loop.giver.memory.Former); n != 1 {
			t.Errorf("%d former holders are remembered", n)
		}
		mustClose(t, w)
	})
}

// What was used before keys were noted is the present holder's.
func TestQuotaOfAnOlderVersion(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		h.config.Members = map[string]MemberTerms{"bob": {Quota: 1000}}
		m := memory{Version: memoryVersion, Members: map[string]giving.Ledger{"bob": {}}}
		ledger := m.Members["bob"]
		ledger.Turn(giving.MonthOf(time.Now()))
		ledger.Count(700)
		m.Members["bob"] = ledger
		if err := m.save(h.config.Memory); err != nil {
			t.Fatal(err)
		}
		holder := bobAt
		holder.Key[0] = 1
		w := h.start(t)
		w.SessionUp(holder)
		if s, err := w.Snapshot(); err != nil || len(s.Limited) != 1 || s.Limited[0].Used != 700 {
			t.Errorf("%+v, %v", s.Limited, err)
		}
		mustClose(t, w)
	})
}
