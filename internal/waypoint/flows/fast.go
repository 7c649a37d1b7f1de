package flows

import (
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
)

const (
	// WatchEvery is the interval of checks of a watched connection.
	WatchEvery = time.Second
	// dueAtOnce limits the number of connections checked at once, so that the owner is not kept from requests. The others
	// are due a second later.
	dueAtOnce = 2000
)

// Fast is a connection on the fast path, or one that is watched and may get there.
type Fast struct {
	Origin netstate.Tuple
	Flow   forward.Flow
	Passed forward.Passed // at its last check

	forwarded bool
	sight     sight // of one that is watched
	looked    time.Time
}

// sight holds observations of a connection: by eBPF, and then by netfilter.
type sight struct {
	seen    forward.Seen
	counted forward.Passed // bytes that netfilter has let pass
}

// known reports whether the numbers of both directions are known.
func (s sight) known() bool { return s.seen.Origin.Begun > 0 && s.seen.Reply.Begun > 0 }

// sameNumbers reports whether the numbers continue those of an earlier sight.
func (s sight) sameNumbers(seen forward.Seen) bool {
	return s.known() && s.seen.Origin.Begun == seen.Origin.Begun && s.seen.Reply.Begun == seen.Reply.Begun
}

// grown reports whether netfilter has since forwarded packets in both directions.
func (s sight) grown(counted forward.Passed) bool {
	return counted.Origin > s.counted.Origin && counted.Reply > s.counted.Reply
}

// Key returns a connection in the form of package forward.
func Key(f netstate.Flow) forward.Flow {
	return forward.Flow{Origin: forward.Tuple(f.Origin), Reply: forward.Tuple(f.Reply)}
}

// MayBeFast reports whether connections of a kind of detour can use the fast path. Packets of tunnels cannot, because they
// have no Ethernet header.
func MayBeFast(k wire.Kind) bool { return k == wire.Mapped || k == wire.InBand }

// ToWatch returns the connection to watch after an event, and the bytes that the fast path carried of it before. It returns
// false if there is nothing to watch.
func (x *Flows) ToWatch(f netstate.Flow) (forward.Flow, forward.Passed, bool) {
	c := x.open[f.Origin]
	if c == nil || !f.Established || x.fast[f.Origin] != nil || !MayBeFast(c.Kind) {
		return forward.Flow{}, forward.Passed{}, false
	}
	return Key(c.flow), c.passed, true
}

// Watched records that a connection is watched.
func (x *Flows) Watched(origin netstate.Tuple, now time.Time) {
	c := x.open[origin]
	x.fast[origin] = &Fast{Origin: origin, Flow: Key(c.flow), Passed: c.passed, looked: now}
	c.passed = forward.Passed{}
}

// DueWatched returns the watched connections that are due for a check, and records the check.
func (x *Flows) DueWatched(now time.Time) []*Fast { return x.due(now, false, WatchEvery) }

// DueForwarded returns the connections on the fast path that are due for a check, and records the check.
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

// News reports whether packets have arrived since the last Judge.
func (f *Fast) News(seen forward.Seen) bool { return seen != f.sight.seen }

// Judge reports whether a connection's numbers are certain, from observations by eBPF, by netfilter and again by eBPF.
func (f *Fast) Judge(before forward.Seen, entry netstate.Flow, after forward.Seen) bool {
	counted := forward.Passed{Origin: entry.BytesOrigin, Reply: entry.BytesReply}
	if !f.sight.sameNumbers(after) {
		f.sight = sight{before, counted}
		return false
	}
	return f.sight.grown(counted)
}

// Simple reports whether a connection may bypass conntrack: it is established, and no helper reads its data.
func Simple(entry netstate.Flow) bool { return entry.Established && !entry.Helped }

// Forwarded records that the connection is on the fast path.
func (f *Fast) Forwarded(now time.Time) { f.forwarded, f.looked = true, now }

// Action is an action for a connection on the fast path.
type Action uint8

// The actions.
const (
	Nothing Action = iota // it is idle
	Prolong               // prolong conntrack's entry, because the connection is alive
	Leave                 // leave the fast path, because the connection has ended
)

// Alive records a check of the connection, and returns the action.
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

// Fast returns a watched or forwarded connection, or nil.
func (x *Flows) Fast(origin netstate.Tuple) *Fast { return x.fast[origin] }

// FastWhere returns the matching watched or forwarded connections for which which returns true.
func (x *Flows) FastWhere(match netstate.MarkMatch, which func(netstate.Flow) bool) []netstate.Tuple {
	var list []netstate.Tuple
	for origin := range x.fast {
		if c := x.open[origin]; c != nil && c.flow.Mark&match.Mask == match.Value && which(c.flow) {
			list = append(list, origin)
		}
	}
	return list
}

// Left records that a connection has left the fast path, which has carried passed of it.
func (x *Flows) Left(origin netstate.Tuple, passed forward.Passed) {
	delete(x.fast, origin)
	x.Carried(origin, passed)
}

// CountForwarded returns the number of connections on the fast path.
func (x *Flows) CountForwarded() (n int) {
	for _, f := range x.fast {
		if f.forwarded {
			n++
		}
	}
	return n
}
