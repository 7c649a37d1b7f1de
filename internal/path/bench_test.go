package path_test

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

const crowd = 10_000

// life holds the events of one connection to a server of its own: up to the second subflow, and to the end.
type life struct{ begin, end []path.Event }

func lives() []life {
	all := make([]life, crowd)
	for i := range all {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 0xCB000000+uint32(i))
		server := netip.AddrPortFrom(netip.AddrFrom4(a), 80)
		mapped := netip.AddrPortFrom(ip("bob"), uint16(2000+i))
		token := path.Token(i + 1)
		first := netip.AddrPortFrom(ip("me"), uint16(1+i))
		second := netip.AddrPortFrom(ip("me"), uint16(20_000+i))
		id := path.DetourID("mapped " + mapped.String() + " to " + server.String())
		all[i] = life{
			begin: []path.Event{
				path.ConnEstablished{Token: token, Local: first, Remote: server},
				path.DetourOffered{Detour: path.Detour{ID: id, Kind: path.Mapped, Waypoint: "bob", Remote: mapped, Server: server}},
				path.SubflowRequested{Token: token, LocalID: 1, Local: second},
				path.SubflowEstablished{Token: token, LocalID: 1, Local: second, Remote: mapped},
			},
			end: []path.Event{
				path.SubflowClosed{Token: token, LocalID: 1, Local: second, Remote: mapped},
				path.ConnClosed{Token: token},
				path.DetourWithdrawn{ID: id},
			},
		}
	}
	return all
}

// BenchmarkConnections begins one connection and ends one beside 10,000 living ones of two subflows each, with the
// ticks that are due meanwhile at 2,000 a second.
func BenchmarkConnections(b *testing.B) { connections(b, lives()) }

// BenchmarkInBand does the same with a detour to any server, so that no mapping is asked for.
func BenchmarkInBand(b *testing.B) {
	all := lives()
	for i := range all {
		l := &all[i]
		server := l.begin[0].(path.ConnEstablished).Remote
		up, down := l.begin[3].(path.SubflowEstablished), l.end[0].(path.SubflowClosed)
		up.Remote = netip.AddrPortFrom(ip("bob"), server.Port())
		down.Remote = up.Remote
		l.begin = []path.Event{l.begin[0], l.begin[2], up}
		l.end = []path.Event{down, l.end[1]}
	}
	d := path.Detour{ID: "in-band bob", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(ip("bob"), 0)}
	connections(b, all, path.DetourOffered{Detour: d})
}

func connections(b *testing.B, all []life, first ...path.Event) {
	m := path.New(path.Config{Policy: policy.Detours{Subflows: 2}, TLSPorts: []uint16{443}})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	events := 0
	handle := func(evs []path.Event) {
		for _, ev := range evs {
			m.Handle(ev, now)
		}
		events += len(evs)
	}
	before := heap()
	handle(first)
	for _, l := range all {
		handle(l.begin)
	}
	perConn := float64(heap()-before) / crowd
	creates := 0
	events = 0
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now = now.Add(time.Second / 2000)
		if at, ok := m.Next(); ok && !at.After(now) {
			m.Handle(path.Tick{}, now)
			events++
		}
		l := all[i%crowd]
		handle(l.end)
		for _, ev := range l.begin {
			for _, a := range m.Handle(ev, now) {
				if _, ok := a.(path.CreateSubflow); ok {
					creates++
				}
			}
			events++
		}
	}
	if creates < b.N {
		b.Fatalf("%d connections, %d subflows created", b.N, creates)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(events), "ns/event")
	b.ReportMetric(perConn, "B/conn")
}

// heap returns the memory in use after a collection.
func heap() uint64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// BenchmarkMeasured samples all 20,000 subflows.
func BenchmarkMeasured(b *testing.B) {
	measured(b, path.Config{Policy: policy.Detours{Subflows: 2}})
}

// BenchmarkMeasuredExcluded does the same with destinations that get no detours. Rates and totals are all that is wanted of
// them, so it should take less.
func BenchmarkMeasuredExcluded(b *testing.B) {
	measured(b, path.Config{Policy: policy.Detours{Subflows: 2}, Exclude: []netip.Prefix{netip.MustParsePrefix("203.0.0.0/8")}})
}

func measured(b *testing.B, cfg path.Config) {
	m := path.New(cfg)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var all path.Measured
	for _, l := range lives() {
		for _, ev := range l.begin {
			m.Handle(ev, now)
			switch ev := ev.(type) {
			case path.ConnEstablished:
				all.Samples = append(all.Samples, path.Sample{Token: ev.Token, Local: ev.Local, Remote: ev.Remote})
			case path.SubflowEstablished:
				all.Samples = append(all.Samples, path.Sample{Token: ev.Token, Local: ev.Local, Remote: ev.Remote})
			}
		}
	}
	for b.Loop() {
		now = now.Add(time.Second)
		for i := range all.Samples {
			all.Samples[i].BytesReceived += 1000
		}
		m.Handle(all, now)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(all.Samples)), "ns/sample")
}

// BenchmarkOffer offers a detour to any server to 10,000 connections that lack one, and withdraws it.
func BenchmarkOffer(b *testing.B) {
	m := path.New(path.Config{Policy: policy.Detours{Subflows: 100}})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, l := range lives() {
		m.Handle(l.begin[0], now)
	}
	d := path.Detour{ID: "wireguard bob", Kind: path.WireGuard, Waypoint: "bob", Local: ip("tun")}
	for b.Loop() {
		if n := len(m.Handle(path.DetourOffered{Detour: d}, now)); n < crowd {
			b.Fatalf("%d actions for %d connections", n, crowd)
		}
		b.StopTimer()
		m.Handle(path.DetourWithdrawn{ID: d.ID}, now)
		for _, l := range lives() {
			m.Handle(l.end[1], now)
			m.Handle(l.begin[0], now)
		}
		b.StartTimer()
	}
}
