package flows

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

const keepEvery = 10 * time.Second

var begin = time.Unix(1_000_000, 0)

func flow(port uint16, kind wire.Kind) netstate.Flow {
	client, waypoint, server := netip.MustParseAddr("9.0.0.1"), netip.MustParseAddr("1.0.0.1"), netip.MustParseAddrPort("8.0.0.1:443")
	return netstate.Flow{
		Origin: netstate.Tuple{Src: netip.AddrPortFrom(client, port), Dst: netip.AddrPortFrom(waypoint, 444)},
		Reply:  netstate.Tuple{Src: server, Dst: netip.AddrPortFrom(waypoint, port)},
		Mark:   rules.DefaultMarks.Mark(1, kind),
	}
}

func newFlows() *Flows {
	return New(func(f netstate.Flow) (Owner, bool) {
		id, kind, ours := rules.DefaultMarks.OfMark(f.Mark)
		return Owner{Member: id, Name: "alice", Serial: "5e", Kind: kind}, ours
	}, keepEvery)
}

func nothing(*Fast) forward.Passed { return forward.Passed{} }

// A connection is logged when it opens and when it closes, once each, with the bytes of both ways.
func TestOpenAndClose(t *testing.T) {
	for _, kind := range []wire.Kind{wire.Mapped, wire.InBand, wire.WireGuard} {
		t.Run(kind.String(), func(t *testing.T) {
			x := newFlows()
			f := flow(1, kind)
			e, ok := x.Open(attribution.FlowOpened, f, begin)
			if !ok || e.Event != attribution.FlowOpened || e.Member != "alice" || e.ClientPort != 1 || (e.Port == 444) != MayBeFast(kind) || e.Tunnel.IsValid() == MayBeFast(kind) {
				t.Errorf("opened: %+v, %v", e, ok)
			}
			if e, ok := x.Open(attribution.FlowFound, f, begin); ok {
				t.Errorf("opened again: %+v", e)
			}
			x.Carried(f.Origin, forward.Passed{Origin: 100, Reply: 1000})
			counted := map[netstate.Tuple]netstate.Flow{f.Origin: {BytesOrigin: 7, BytesReply: 8}}
			if u := x.Usage(counted, nothing)[1]; u != (Usage{Open: 1, BytesFromClient: 107, BytesToClient: 1008}) {
				t.Errorf("open: %+v", u)
			}
			f.BytesOrigin, f.BytesReply = 20, 30
			if e, ok = x.Close(f, true, begin.Add(time.Minute)); !ok || *e.BytesFromClient != 120 || *e.BytesToClient != 1030 || !e.Opened.Equal(begin) {
				t.Errorf("closed: %+v, %v", e, ok)
			}
			if u := x.Usage(nil, nothing)[1]; u != (Usage{BytesFromClient: 120, BytesToClient: 1030}) {
				t.Errorf("closed: %+v", u)
			}
		})
	}
}

// A connection without our mark belongs to no member, and one whose end was not seen has no byte count.
func TestStrangersAndLostEvents(t *testing.T) {
	x := newFlows()
	stranger := flow(1, wire.Mapped)
	stranger.Mark = 0
	if _, ok := x.Open(attribution.FlowOpened, stranger, begin); ok {
		t.Error("a stranger's connection is opened")
	}
	if _, ok := x.Close(stranger, true, begin); ok {
		t.Error("a stranger's connection is closed")
	}
	for port := range uint16(3) {
		x.Open(attribution.FlowOpened, flow(port, wire.Mapped), begin)
	}
	gone := x.Gone(map[netstate.Tuple]struct{}{flow(0, wire.Mapped).Origin: {}, flow(2, wire.Mapped).Origin: {}})
	if len(gone) != 1 || gone[0].Origin != flow(1, wire.Mapped).Origin || len(x.All()) != 3 {
		t.Fatalf("gone: %+v", gone)
	}
	if e, ok := x.Close(gone[0], false, begin); !ok || e.BytesFromClient != nil {
		t.Errorf("closed: %+v, %v", e, ok)
	}
	if e, ok := x.Close(flow(9, wire.Mapped), true, begin); !ok || e.BytesFromClient == nil || !e.Opened.IsZero() {
		t.Errorf("an end without a beginning: %+v, %v", e, ok)
	}
}

// Only established connections by mappings and in-band are watched, each once.
func TestToWatch(t *testing.T) {
	for _, c := range []struct {
		kind                     wire.Kind
		known, established, want bool
	}{
		{wire.Mapped, true, true, true},
		{wire.InBand, true, true, true},
		{wire.WireGuard, true, true, false},
		{wire.Mapped, true, false, false},
		{wire.Mapped, false, true, false},
	} {
		x := newFlows()
		f := flow(1, c.kind)
		if c.known {
			x.Open(attribution.FlowOpened, f, begin)
			x.Carried(f.Origin, forward.Passed{Origin: 5})
		}
		f.Established = c.established
		key, passed, got := x.ToWatch(f)
		if got != c.want || got && (key != Key(f) || passed.Origin != 5) {
			t.Errorf("%+v: %+v, %+v, %v", c, key, passed, got)
		}
		if !got {
			continue
		}
		x.Watched(f.Origin, begin)
		if _, _, again := x.ToWatch(f); again {
			t.Error("watched twice")
		}
		x.Left(f.Origin, forward.Passed{Origin: 6})
		if x.Fast(f.Origin) != nil || x.Passed(f.Origin, nothing).Origin != 6 {
			t.Errorf("has left: %+v, passed %+v", x.Fast(f.Origin), x.Passed(f.Origin, nothing))
		}
	}
}

func watched(x *Flows, f netstate.Flow) *Fast {
	x.Open(attribution.FlowOpened, f, begin)
	x.Watched(f.Origin, begin)
	return x.Fast(f.Origin)
}

// Numbers are certain if they were not restarted while netfilter counted packets in both directions.
func TestJudge(t *testing.T) {
	seen := func(origin, reply, next uint32) forward.Seen {
		return forward.Seen{Origin: forward.Numbers{Begun: origin, Next: next}, Reply: forward.Numbers{Begun: reply, Next: next}}
	}
	type look struct {
		seen     forward.Seen
		up, down uint64
	}
	for name, c := range map[string]struct {
		looks []look
		want  bool
	}{
		"one look":                    {[]look{{seen(1, 1, 100), 10, 10}}, false},
		"both directions":             {[]look{{seen(1, 1, 100), 10, 10}, {seen(1, 1, 200), 20, 20}}, true},
		"one direction":               {[]look{{seen(1, 1, 100), 10, 10}, {seen(1, 1, 200), 20, 10}}, false},
		"numbers of one direction":    {[]look{{seen(1, 0, 100), 10, 10}, {seen(1, 0, 200), 20, 20}}, false},
		"begun anew":                  {[]look{{seen(1, 1, 100), 10, 10}, {seen(2, 1, 200), 20, 20}}, false},
		"begun anew, then on":         {[]look{{seen(1, 1, 100), 10, 10}, {seen(2, 1, 200), 20, 20}, {seen(2, 1, 300), 30, 30}}, true},
		"netfilter lets nothing pass": {[]look{{seen(1, 1, 100), 10, 10}, {seen(1, 1, 200), 10, 10}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := watched(newFlows(), flow(1, wire.Mapped))
			var got bool
			for _, l := range c.looks {
				if !f.News(l.seen) {
					t.Fatalf("%+v is no news", l)
				}
				got = f.Judge(l.seen, netstate.Flow{BytesOrigin: l.up, BytesReply: l.down}, l.seen)
			}
			if got != c.want {
				t.Errorf("certain: %v", got)
			}
		})
	}
}

// Connections are looked at in time, of many as many at once as may be.
func TestDue(t *testing.T) {
	x := newFlows()
	for port := range uint16(dueAtOnce + 10) {
		watched(x, flow(port, wire.Mapped))
	}
	if n := len(x.DueWatched(begin.Add(WatchEvery - 1))); n != 0 {
		t.Errorf("%d are due too early", n)
	}
	now := begin.Add(WatchEvery)
	list := x.DueWatched(now)
	if rest := x.DueWatched(now); len(list) != dueAtOnce || len(rest) != 10 {
		t.Errorf("%d are due, then %d", len(list), len(rest))
	}
	list[0].Forwarded(now)
	if n := x.CountForwarded(); n != 1 {
		t.Errorf("%d on the fast path", n)
	}
	if x.DueForwarded(now.Add(keepEvery-1)) != nil {
		t.Error("due too early")
	}
	if got := x.DueForwarded(now.Add(keepEvery)); len(got) != 1 || got[0] != list[0] {
		t.Errorf("due: %+v", got)
	}
}

func TestAlive(t *testing.T) {
	f := watched(newFlows(), flow(1, wire.Mapped))
	for i, c := range []struct {
		passed uint64
		ended  bool
		want   Action
	}{{0, false, Nothing}, {5, false, Prolong}, {5, false, Nothing}, {5, true, Leave}} {
		if got := f.Alive(forward.State{Passed: forward.Passed{Origin: c.passed}, Ended: c.ended}); got != c.want {
			t.Errorf("look %d: %v", i, got)
		}
	}
}

// The connections that must leave the fast path are found by mark and address, also those that are only watched.
func TestFastWhere(t *testing.T) {
	x := newFlows()
	watched(x, flow(1, wire.Mapped))
	watched(x, flow(2, wire.InBand))
	all := func(netstate.Flow) bool { return true }
	one := func(f netstate.Flow) bool { return f.Origin.Src.Port() == 1 }
	for _, c := range []struct {
		match netstate.MarkMatch
		which func(netstate.Flow) bool
		want  int
	}{{rules.DefaultMarks.Of(1), all, 2}, {rules.DefaultMarks.Of(1), one, 1}, {rules.DefaultMarks.Of(2), all, 0}, {rules.DefaultMarks.Ours(), all, 2}} {
		if got := len(x.FastWhere(c.match, c.which)); got != c.want {
			t.Errorf("%+v: %d", c.match, got)
		}
	}
}
