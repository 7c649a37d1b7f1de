package waypoint

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/bpf/inband"
	"github.com/detour-collective/dcol/internal/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/rules/rulestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHost is the system around a waypoint without a kernel.
type fakeHost struct {
	*network // for its log

	table  *rulestest.Fake
	events chan flowNews
	closed chan struct{}

	mu        sync.Mutex
	flows     []netstate.Flow
	listening []netip.AddrPort
	lists     int
	deleted   []netstate.MarkMatch
	inBand    fakeInBand
}

// fakeInBand is what a fakeReceiver has.
type fakeInBand struct {
	keys                    map[netip.Addr][]inband.Slot
	interfaces              []netstate.Interface
	attached                []int
	keysFailure, attFailure error
}

// fakeReceiver is the eBPF of in-band detours.
type fakeReceiver struct{ h *fakeHost }

func (h *fakeHost) receiver() synReceiver {
	if h.config.InBand != InBandAuthenticated {
		return nil
	}
	return fakeReceiver{h}
}

func (r fakeReceiver) Attach(interfaces []int) error {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	if r.h.inBand.attFailure == nil {
		r.h.inBand.attached = interfaces
	}
	return r.h.inBand.attFailure
}

func (r fakeReceiver) Set(client netip.Addr, slots []inband.Slot) error {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	if r.h.inBand.keysFailure != nil {
		return r.h.inBand.keysFailure
	}
	if r.h.inBand.keys[client] = slots; len(slots) == 0 {
		delete(r.h.inBand.keys, client)
	}
	return nil
}

func (r fakeReceiver) Addresses() ([]netip.Addr, error) {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	return slices.Collect(maps.Keys(r.h.inBand.keys)), nil
}

func (r fakeReceiver) Counters() (inband.Counters, error) { return inband.Counters{}, nil }

// slots are the keys that SYNs from an address are checked with.
func (h *fakeHost) slots(client netip.Addr) []inband.Slot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inBand.keys[client]
}

func (h *fakeHost) forgetKeys() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.inBand.keys)
}

// failKeys and failAttach make that fail from now on; nil ends it.
func (h *fakeHost) failKeys(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inBand.keysFailure = err
}

func (h *fakeHost) failAttach(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inBand.attFailure = err
}

func (h *fakeHost) attachedTo() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inBand.attached
}

func (h *fakeHost) setInterfaces(list ...netstate.Interface) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inBand.interfaces = list
}

func newFakeHost(t *testing.T) *fakeHost {
	dir := t.TempDir()
	h := &fakeHost{events: make(chan flowNews), inBand: fakeInBand{keys: make(map[netip.Addr][]inband.Slot)}, network: &network{config: Config{
		MappingsPerMember: 1000, MappingLifetime: 10 * time.Minute, Log: filepath.Join(dir, "log")}}}
	h.table = rulestest.New(h.config.options())
	return h
}

// start is an agent's waypoint. One that ends without an end to its sessions was killed.
func (h *fakeHost) start(t *testing.T) *Waypoint {
	t.Helper()
	h.table.Reopen(h.config.options())
	h.closed = make(chan struct{})
	w, err := start(h.config, kernel{
		rules: h.table,
		listeners: func() ([]netip.AddrPort, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.lists++
			return h.listening, nil
		},
		own: func() ([]netstate.Address, error) { return []netstate.Address{{Addr: ownAddr}}, nil },
		interfaces: func() ([]netstate.Interface, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.inBand.interfaces, nil
		},
		receiver: h.receiver(),
		flows:    h,
		events:   fakeEvents{h},
		close:    func() error { return nil },
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

var ownAddr = netip.MustParseAddr("1.0.0.1")

func (h *fakeHost) Flows(_ netstate.MarkMatch, each func(netstate.Flow)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.flows {
		each(f)
	}
	return nil
}

func (h *fakeHost) Delete(match netstate.MarkMatch) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deleted = append(h.deleted, match)
	return nil
}

func (h *fakeHost) DeleteEach(_ netstate.MarkMatch, which func(netstate.Flow) bool) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := len(h.flows)
	h.flows = slices.DeleteFunc(h.flows, which)
	return before - len(h.flows), nil
}

func (h *fakeHost) setFlows(flows ...netstate.Flow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flows = flows
}

type fakeEvents struct{ h *fakeHost }

func (e fakeEvents) Receive() ([]netstate.FlowEvent, error) {
	select {
	case news := <-e.h.events:
		if news.lost {
			return nil, netstate.ErrEventsLost
		}
		return news.events, nil
	case <-e.h.closed:
		return nil, errors.New("closed")
	}
}

func (e fakeEvents) Close() error { close(e.h.closed); return nil }

var (
	aliceAt = peer("alice", netip.MustParseAddr("9.0.0.1"))
	bobAt   = peer("bob", netip.MustParseAddr("9.0.0.2"))
)

func serverNumber(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{8, byte(i >> 16), byte(i >> 8), byte(i)}), 443)
}

func run(t *testing.T, f func(t *testing.T, h *fakeHost)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newFakeHost(t)) })
}

func mustClose(t *testing.T, w *Waypoint) {
	t.Helper()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// While one transaction is being written, what arrives shares the next.
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
		time.Sleep(time.Minute + expiryGrace + tableCheck)
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
