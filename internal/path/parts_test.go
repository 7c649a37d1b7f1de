package path_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// A subflow counts as gone only after the last part of a complete sample. An incomplete series of parts shows
// nothing.
func TestCompleteSampleInParts(t *testing.T) {
	m, now := path.New(path.Config{Policy: policy.Detours{Subflows: 2}}), birth
	m.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}}, now)
	m.Handle(path.DetourOffered{Detour: path.Detour{ID: "bob", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(ip("bob"), 0)}}, now)
	first := path.ConnEstablished{Token: 1, Local: netip.AddrPortFrom(ip("me"), 1000), Remote: netip.AddrPortFrom(ip("web"), 80)}
	m.Handle(first, now)
	detour := netip.AddrPortFrom(ip("me"), 2000)
	remote := netip.AddrPortFrom(ip("bob"), 80)
	m.Handle(path.SubflowRequested{Token: 1, LocalID: 1, Local: detour}, now)
	m.Handle(path.SubflowEstablished{Token: 1, LocalID: 1, Local: detour, Remote: remote}, now)
	one := path.Sample{Token: 1, Local: first.Local, Remote: first.Remote}
	two := path.Sample{Token: 1, Local: detour, Remote: remote}
	asksFor := func(ev path.Measured) (asked []netip.AddrPort) {
		for _, a := range m.Handle(ev, now) {
			if a, ok := a.(path.Measure); ok {
				asked = append(asked, a.Local)
			}
		}
		return asked
	}
	for i, step := range []struct {
		ev   path.Measured
		gone []netip.AddrPort
	}{
		{path.Measured{Samples: []path.Sample{one}, Complete: true, More: true}, nil},
		{path.Measured{Samples: []path.Sample{two}, Complete: true, Continues: true}, nil},
		{path.Measured{Samples: []path.Sample{one}, Complete: true, More: true}, nil}, // the series ends early
		{path.Measured{Samples: []path.Sample{two}, Complete: true, More: true}, nil},
		{path.Measured{Samples: []path.Sample{one}, Complete: true, Continues: true}, nil},
		{path.Measured{Samples: []path.Sample{one}, Complete: true, More: true}, nil},
		{path.Measured{Complete: true, Continues: true}, []netip.AddrPort{detour}},
	} {
		now = now.Add(time.Second)
		if gone := asksFor(step.ev); !slices.Equal(gone, step.gone) {
			t.Errorf("step %d: asks for %v, want %v", i, gone, step.gone)
		}
	}
}

// A subflow's rates are those between the last two complete samples, however often it is sampled in between.
func TestRatesOfSubflows(t *testing.T) {
	m, now := path.New(path.Config{Policy: policy.Detours{Subflows: 1}}), birth
	m.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}}, now)
	first := path.ConnEstablished{Token: 1, Local: netip.AddrPortFrom(ip("me"), 1000), Remote: netip.AddrPortFrom(ip("web"), 80)}
	m.Handle(first, now)
	for _, step := range []struct {
		after    time.Duration
		bytes    uint64 // received; twice as much is acknowledged
		complete bool
		receive  float64
	}{
		{500 * time.Millisecond, 1000, true, 16000}, // since it began
		{500 * time.Millisecond, 2000, false, 16000},
		{500 * time.Millisecond, 3000, true, 16000},
		{2 * time.Second, 4000, true, 4000},
		{time.Second, 4000, true, 0},
	} {
		now = now.Add(step.after)
		m.Handle(path.Measured{Complete: step.complete, Samples: []path.Sample{{
			Token: 1, Local: first.Local, Remote: first.Remote, BytesReceived: step.bytes, BytesAcked: 2 * step.bytes,
		}}}, now)
		s := m.Snapshot(now).Conns[0].Subflows[0]
		if s.ReceiveRate != step.receive || s.SendRate != 2*step.receive {
			t.Errorf("after %v: %v and %v bit/s, want %v and twice that", now.Sub(birth), s.ReceiveRate, s.SendRate, step.receive)
		}
	}
}
