package flows

import (
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
)

const (
	// WatchEvery is how often a connection that is watched is looked at.
	WatchEvery = time.Second
	// dueAtOnce bounds how long looking at connections keeps the owner from requests. The rest is due a second later.
	dueAtOnce = 2000
)

// Fast is a connection on the fast path, or one that is watched and may get there.
type Fast struct {
	Origin netstate.Tuple
	Flow   forward.Flow
	Passed forward.Passed // when it was last looked at

	forwarded bool
	sight     sight // of one that is watched
	looked    time.Time
}

// sight holds what was seen of a connection: first by eBPF, then by netfilter.
type sight struct {
	seen    forward.Seen
	counted forward.Passed // bytes that netfilter has let pass
}

// known reports whether there are numbers of both directions.
func (s sight) known() bool { return s.seen.Origin.Begun > 0 && s.seen.Reply.Begun > 0 }

// sameNumbers reports whether the numbers go on from those of an earlier sight.
func (s sight) sameNumbers(seen forward.Seen) bool {
	return s.known() && s.seen.Origin.Begun == seen.Origin.Begun && s.seen.Reply.Begun == seen.Reply.Begun
}

// grown reports whether netfilter has since let packets pass in both directions.
func (s sight) grown(counted forward.Passed) bool {
	return counted.Origin > s.counted.Origin && counted.Reply > s.counted.Reply
}

// Key returns a connection as package forward knows it.
func Key(f netstate.Flow) forward.Flow {
	return forward.Flow{Origin: forward.Tuple(f.Origin), Reply: forward.Tuple(f.Reply)}
}

// MayBeFast reports whether connections by a kind of detour go on the fast path. Packets of tunnels have no Ethernet
// header.
func MayBeFast(k wire.Kind) bool { return k == wire.Mapped || k == wire.InBand }

// ToWatch returns the connection that is to be watched after an event, and what was carried of it; false: none.
func (x *Flows) ToWatch(f netstate.Flow) (forward.Flow, forward.Passed, bool) {
	c := x.open[f.Origin]
	if c == nil || !f.Established || x.fast[f.Origin] != nil || !MayBeFast(c.Kind) {
		return forward.Flow{}, forward.Passed{}, false
	}
	return Key(c.flow), c.passed, true
}

// Watched notes that a connection is watched.
func (x *Flows) Watched(origin netstate.Tuple, now time.Time) {
	c := x.open[origin]
	x.fast[origin] = &Fast{Origin: origin, Flow: Key(c.flow), Passed: c.passed, looked: now}
	c.passed = forward.Passed{}
}

// DueWatched returns the watched connections that are to be looked at, and notes that they are.
func (x *Flows) DueWatched(now time.Time) []*Fast { return x.due(now, false, WatchEvery) }

// DueForwarded returns the connections on the fast path that are to be looked at, and notes that they are.
func (x *Flows) DueForwarded(now time.Time) []*Fast { return x.due(now, true, x.keepEvery) }

func (x *Flows) due(now time.Time, forwarded bool, every time.Duration) []*Fast {
	var list []*Fast
	for _, f := range x.fast {
		if f.forwarded != forwarded || now.Sub(f.looked) < every {
			continue
		}
		if len(list) == dueAtOnce {
			break
		}
		f.looked = now
		list = append(list, f)
	}
	return list
}

// News reports whether packets have come since the connection was last judged.
func (f *Fast) News(seen forward.Seen) bool { return seen != f.sight.seen }

// Judge reports whether a connection's numbers are certain. It was looked at by eBPF, by netfilter and by eBPF again.
func (f *Fast) Judge(before forward.Seen, entry netstate.Flow, after forward.Seen) bool {
	counted := forward.Passed{Origin: entry.BytesOrigin, Reply: entry.BytesReply}
	if !f.sight.sameNumbers(after) {
		f.sight = sight{before, counted}
		return false
	}
	return f.sight.grown(counted)
}

// Simple reports whether an entry of conntrack's may be bypassed: the connection is established, and no helper reads
// what it carries.
func Simple(entry netstate.Flow) bool { return entry.Established && !entry.Helped }

// Forwarded notes that the connection is on the fast path.
func (f *Fast) Forwarded(now time.Time) { f.forwarded, f.looked = true, now }

// Action says what to do with a connection on the fast path.
type Action uint8

// The actions.
const (
	Nothing Action = iota // it is idle
	Prolong               // conntrack's entry, as the connection is alive
	Leave                 // the fast path, as the connection has ended
)

// Alive notes what has become of the connection.
func (f *Fast) Alive(s forward.State) Action {
	if s.Passed == f.Passed && !s.Ended {
		return Nothing
	}
	f.Passed = s.Passed
	if s.Ended {
		return Leave
	}
	return Prolong
}

// Fast returns the connection as it is watched or forwarded; nil if it is neither.
func (x *Flows) Fast(origin netstate.Tuple) *Fast { return x.fast[origin] }

// FastWhere returns the matching connections that are watched or forwarded, and that which says yes to.
func (x *Flows) FastWhere(match netstate.MarkMatch, which func(netstate.Flow) bool) []netstate.Tuple {
	var list []netstate.Tuple
	for origin := range x.fast {
		if c := x.open[origin]; c != nil && c.flow.Mark&match.Mask == match.Value && which(c.flow) {
			list = append(list, origin)
		}
	}
	return list
}

// Left notes that netfilter sees all packets of a connection, of which the fast path has carried some.
func (x *Flows) Left(origin netstate.Tuple, passed forward.Passed) {
	delete(x.fast, origin)
	x.Carried(origin, passed)
}

// CountForwarded returns how many connections are on the fast path.
func (x *Flows) CountForwarded() (n int) {
	for _, f := range x.fast {
		if f.forwarded {
			n++
		}
	}
	return n
}
