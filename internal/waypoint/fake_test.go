package waypoint

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/rules/rulestest"
)

// fakeHost is the system around a waypoint without a kernel.
type fakeHost struct {
	*network // for its log

	table  *rulestest.Fake
	events chan flowNews
	closed chan struct{}

	mu        sync.Mutex
	flows     []netstate.Flow
	listening []netip.AddrPort
	reserved  netstate.Ports
	lists     int
	deleted   []netstate.MarkMatch
	inBand    fakeInBand
	fast      *fakeFast // nil: none
	log       slog.Handler
}

// fakeInBand implements a fakeReceiver's programs.
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

func (r fakeReceiver) Slots(client netip.Addr) ([]inband.Slot, error) {
	return slices.Clone(r.h.slots(client)), nil
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
	h := &fakeHost{log: slog.DiscardHandler, events: make(chan flowNews), inBand: fakeInBand{keys: make(map[netip.Addr][]inband.Slot)}, network: &network{config: Config{
		MappingsPerMember: 1000, MappingLifetime: 10 * time.Minute, Log: filepath.Join(dir, "log"), Author: testAuthor, Memory: filepath.Join(dir, "given.json"), Counts: filepath.Join(dir, "bytes.json")}}}
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
		reserved: h.reserved,
		own:      func() ([]netstate.Address, error) { return []netstate.Address{{Addr: ownAddr}}, nil },
		onLink:   func() ([]netip.Prefix, error) { return nil, nil },
		interfaces: func() ([]netstate.Interface, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.inBand.interfaces, nil
		},
		receiver:   h.receiver(),
		flows:      h,
		events:     fakeEvents{h},
		fastKernel: h.fast.kernel(),
		close:      func() error { return nil },
	}, slog.New(h.log))
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

// deletedMarks are the marks of ended connections.
func (h *fakeHost) deletedMarks() []netstate.MarkMatch {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.deleted)
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
