package waypoint

import (
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// While one transaction is being written, the requests that arrive share the next.
func TestConcurrentRequestsShareTransactions(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		mustMap(t, w, aliceAt, serverNumber(0), 443)
		if n := h.table.Commits(); n != 1 {
			t.Errorf("a lone request took %d transactions", n)
		}
		resume := make(chan struct{})
		go func() { _ = w.ask(func() { <-resume }) }() // as a transaction would, hold the owner
		synctest.Wait()
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() { mustMap(t, w, aliceAt, serverNumber(i%500), 443) }) // each server twice
		}
		synctest.Wait()
		close(resume)
		wg.Wait()
		if n := h.table.Commits(); n > 1+1+1000/maxBatch {
			t.Errorf("1000 requests took %d transactions", n-1)
		}
		if s, err := w.Snapshot(); err != nil || s.Mappings != 500 || s.Members[0].Granted != 1001 {
			t.Errorf("snapshot %+v, %v", s, err)
		}
	})
}

func TestExpiryFollowsTheClock(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		count := func() int {
			s, err := w.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			return s.Mappings
		}
		mustMap(t, w, aliceAt, serverNumber(1), 443)
		mustMap(t, w, aliceAt, serverNumber(2), 444)
		time.Sleep(9 * time.Minute)
		if g := mustMap(t, w, aliceAt, serverNumber(2), 443); g.Port != 444 || g.Lease != 10*time.Minute {
			t.Errorf("renewed: %+v", g)
		}
		if count() != 2 {
			t.Error("expired too early")
		}
		time.Sleep(time.Minute + lease.ExpiryGrace + tableCheck)
		if count() != 1 {
			t.Error("the first has not expired")
		}
		time.Sleep(9 * time.Minute)
		if count() != 0 {
			t.Error("the renewed has not expired")
		}
		if strings.Contains(h.table.String(), "8.0.0.") {
			t.Errorf("the kernel still has them:\n%s", h.table)
		}
	})
}

func TestRestartAdopts(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		mustMap(t, w, aliceAt, serverNumber(1), 443)
		mustMap(t, w, bobAt, serverNumber(2), 443)
		mustMap(t, w, bobAt, serverNumber(3), 444)
		mustClose(t, w)
		commits := h.table.Commits()
		time.Sleep(time.Minute)

		h.config.MappingsPerMember = 2
		w = h.start(t)
		if n := h.table.Commits(); n != commits {
			t.Error("adopting changed the table")
		}
		list, err := w.Mappings()
		if err != nil || len(list) != 3 || list[0].Member != "alice" || list[0].Left != 9*time.Minute || list[2].Member != "bob" {
			t.Errorf("mappings %+v, %v", list, err)
		}
		if code := refusal(t, w, bobAt, serverNumber(4)); code != wire.QuotaMappings {
			t.Errorf("the quota does not count what was adopted: %v", code)
		}
		carol := peer("carol", netip.MustParseAddr("9.0.0.3"))
		mustMap(t, w, carol, serverNumber(1), 443) // gets an id of her own
		mustClose(t, w)

		// A policy that has become stricter holds for old mappings too.
		h.config.Deny = []netip.Prefix{netip.PrefixFrom(serverNumber(2).Addr(), 32)}
		w = h.start(t)
		defer mustClose(t, w)
		list, err = w.Mappings()
		if err != nil || len(list) != 3 {
			t.Errorf("mappings %+v, %v", list, err)
		}
		for _, m := range list {
			if m.Server == serverNumber(2) {
				t.Error("the denied server is still mapped")
			}
		}
		if strings.Contains(h.table.String(), "8.0.0.2 . 443") || !strings.Contains(h.table.String(), `0x3 comment "carol 5e"`) {
			t.Errorf("the table:\n%s", h.table)
		}
	})
}

func TestCertificateIsRenewed(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		mustMap(t, w, aliceAt, serverNumber(1), 443)
		renewed := aliceAt
		renewed.Serial = "77"
		mustMap(t, w, renewed, serverNumber(1), 443)
		if table := h.table.String(); !strings.Contains(table, `0x1 comment "alice 77"`) {
			t.Errorf("the table:\n%s", table)
		}
	})
}

func TestListenersAreAskedForAtMostOnceASecond(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		for i := range 100 {
			mustMap(t, w, aliceAt, serverNumber(i), 0)
		}
		h.mu.Lock()
		lists := h.lists
		h.listening = []netip.AddrPort{netip.MustParseAddrPort("[::]:8080")}
		h.mu.Unlock()
		if lists != 1 {
			t.Errorf("asked %d times", lists)
		}
		time.Sleep(listenersAge)
		if g := mustMap(t, w, aliceAt, serverNumber(1000), 8080); g.Port == 8080 {
			t.Error("a new listener is not seen")
		}
	})
}

// Ports that the operator keeps for programs of his own lead nowhere, whether a member proposes one or not.
func TestReservedPortsAreNoMappings(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		h.reserved = netstate.Ports{{First: 8080, Last: 8080}, {First: lease.FirstPort, Last: lease.LastPort - 40}}
		w := h.start(t)
		defer mustClose(t, w)
		for i := range 10 {
			for _, proposed := range []uint16{0, 8080} {
				if g := mustMap(t, w, aliceAt, serverNumber(2*i+int(proposed%7)), proposed); h.reserved.Has(g.Port) {
					t.Errorf("port %d is given for %d", g.Port, proposed)
				}
			}
		}
	})
}

func TestSessionsAreCounted(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		defer mustClose(t, w)
		first, second, bobs := aliceAt, aliceAt, bobAt
		first.ID, second.ID, bobs.ID = 1, 2, 3
		w.SessionUp(first)
		w.SessionUp(second)
		w.SessionDown(first)
		w.SessionDown(first)
		mustMap(t, w, aliceAt, serverNumber(1), 443)
		w.SessionDown(bobs)
		s, err := w.Snapshot()
		if err != nil || len(s.Members) != 1 || s.Members[0].Sessions != 1 || s.Mappings != 1 {
			t.Errorf("snapshot %+v, %v", s, err)
		}
		w.SessionDown(second)
		if s, err := w.Snapshot(); err != nil || s.Members[0].Sessions != 0 || s.Mappings != 1 {
			t.Errorf("snapshot %+v, %v", s, err)
		}
	})
}

// A tunnel counts while a session may use it: not from the end of the session over which it was requested until it
// is requested again, though its lease continues.
func TestTunnelsAreCounted(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		tunnels := func(when string, want int) {
			t.Helper()
			if s, err := w.Snapshot(); err != nil || len(s.Members) != 1 || s.Members[0].Tunnels != want {
				t.Errorf("%s: %+v, %v; want %d", when, s.Members, err, want)
			}
		}
		admit := func(by session.Peer, addr string) {
			t.Helper()
			if refusal := w.AdmitTunnel(t.Context(), by, wire.WireGuard, []netip.Addr{netip.MustParseAddr(addr)}, time.Hour); refusal != nil {
				t.Fatal(refusal)
			}
		}
		one, other, again := overSession("alice", aliceAt.Addr, 1), overSession("alice", aliceAt.Addr, 2), overSession("alice", aliceAt.Addr, 3)
		w.SessionUp(one)
		w.SessionUp(other)
		admit(one, "10.77.0.2")
		admit(other, "10.77.0.3")
		tunnels("two agents", 2)
		w.SessionDown(one)
		tunnels("one has gone", 1)
		w.SessionUp(again)
		tunnels("it has come back", 1)
		admit(again, "10.77.0.2")
		tunnels("and asked again", 2)
		if got := len(h.admitted(t, wire.WireGuard)); got != 2 {
			t.Errorf("%d addresses are admitted", got)
		}
		w.SessionDown(other)
		if got := len(h.admitted(t, wire.WireGuard)); got != 2 {
			t.Errorf("%d addresses are admitted: a lease did not go on without its session", got)
		}
		mustClose(t, w)
		w = h.start(t)
		defer mustClose(t, w)
		tunnels("who has gone is not known after a restart", 2)
	})
}
