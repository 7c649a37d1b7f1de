package waypoint

import (
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// A connection is watched before it is forwarded, until its sequence numbers are certain. Whoever knows
// its addresses and ports can send packets with numbers of his own, and eBPF cannot tell them from others.
// conntrack can, as it has followed the connection from its first SYN: while the connection is watched,
// it lets pass and counts only what fits. So the numbers are the connection's own if they were not begun
// anew while conntrack counted packets in both directions.

// watchEvery is how often a connection that is watched is looked at.
const watchEvery = time.Second

// watchedAtOnce bounds how long that keeps the owner from requests. The rest is due a second later.
const watchedAtOnce = 2000

// sight is what was seen of a connection: first by eBPF, then by netfilter.
type sight struct {
	seen    forward.Seen
	counted forward.Passed // bytes that netfilter has let pass
}

// known tells whether there are numbers of both directions.
func (s sight) known() bool { return s.seen.Origin.Begun > 0 && s.seen.Reply.Begun > 0 }

// sameNumbers tells whether the numbers go on from those of an earlier sight.
func (s sight) sameNumbers(seen forward.Seen) bool {
	return s.known() && s.seen.Origin.Begun == seen.Origin.Begun && s.seen.Reply.Begun == seen.Reply.Begun
}

// grown tells whether netfilter has since let packets pass in both directions.
func (s sight) grown(counted forward.Passed) bool {
	return counted.Origin > s.counted.Origin && counted.Reply > s.counted.Reply
}

// lookAtWatched forwards the watched connections whose numbers have become certain.
func (w *Waypoint) lookAtWatched(now time.Time) {
	left := watchedAtOnce
	for origin, f := range w.fast {
		if f.forwarded || now.Sub(f.looked) < watchEvery {
			continue
		}
		if left--; left < 0 {
			return
		}
		f.looked = now
		certain, err := w.lookAgain(origin, f)
		w.saySlow(err)
		if certain && !w.kernel.watchOnly {
			w.enterFastPath(origin, f)
		}
	}
}

// lookAgain tells whether a connection's numbers are certain by now.
func (w *Waypoint) lookAgain(origin netstate.Tuple, f *fastFlow) (certain bool, err error) {
	before, err := w.kernel.fast.Look(f.Flow)
	if err != nil || before.Seen == f.sight.seen {
		return false, err // no packet came
	}
	entry, there, err := w.kernel.entries.Flow(origin)
	if err != nil || !there {
		return false, err
	}
	if !entry.Established || entry.Helped {
		return false, w.leaveFastPath(origin)
	}
	counted := forward.Passed{Origin: entry.BytesOrigin, Reply: entry.BytesReply}
	after, err := w.kernel.fast.Look(f.Flow)
	if err != nil {
		return false, err
	}
	if !f.sight.sameNumbers(after.Seen) {
		f.sight = sight{before.Seen, counted}
		return false, nil
	}
	return f.sight.grown(counted), nil
}
