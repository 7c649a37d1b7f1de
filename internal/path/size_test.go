package path_test

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// Ten thousand connections with a detour each, which have carried a little, need little memory. So many cannot be sampled
// often, even closely.
func TestMemoryOfConnections(t *testing.T) {
	const connections, most = 10_000, 1650 // bytes of heap a connection
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	m, now := path.New(path.Config{Policy: policy.Detours{Subflows: 2}, ByWorth: true}), birth
	m.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}}, now)
	for i, name := range []string{"bob", "carol", "dave"} {
		m.Handle(path.WaypointMeasured{Waypoint: name, Addr: ip(name), RTT: time.Duration(10+10*i) * time.Millisecond}, now)
		m.Handle(path.DetourOffered{Detour: path.Detour{ID: path.DetourID(name), Kind: path.InBand, Waypoint: name, Remote: netip.AddrPortFrom(ip(name), 0)}}, now)
	}
	var all []path.Sample
	var progress []path.Progress
	add := func(token path.Token, local, remote netip.AddrPort) {
		all = append(all, path.Sample{Token: token, Local: local, Remote: remote, BytesReceived: 100, BytesAcked: 100, MinRTT: time.Millisecond})
	}
	for i := range connections {
		now = now.Add(time.Millisecond)
		first := path.ConnEstablished{Token: path.Token(i + 1), Local: netip.AddrPortFrom(ip("me"), uint16(10_000+i)), Remote: netip.AddrPortFrom(ip("web"), 80)}
		add(first.Token, first.Local, first.Remote)
		progress = append(progress, path.Progress{Token: first.Token, Received: 100, Acked: 100})
		for _, a := range slices.Clone(m.Handle(first, now)) {
			if a, ok := a.(path.CreateSubflow); ok {
				local := netip.AddrPortFrom(ip("me"), uint16(20_000+i))
				m.Handle(path.SubflowRequested{Token: a.Token, LocalID: a.LocalID, Local: local}, now)
				m.Handle(path.SubflowEstablished{Token: a.Token, LocalID: a.LocalID, Local: local, Remote: a.Remote}, now)
				add(a.Token, local, a.Remote)
			}
		}
	}
	if len(all) != 2*connections {
		t.Fatalf("%d subflows", len(all))
	}
	for range 8 {
		now = now.Add(time.Second)
		m.Handle(path.Measured{Samples: all, Complete: true, Progress: progress}, now)
	}
	all = nil
	each := (heap() - before) / connections
	t.Logf("%d bytes a connection", each)
	if each > most {
		t.Errorf("%d bytes a connection, at most %d", each, most)
	}
	runtime.KeepAlive(m)
}
