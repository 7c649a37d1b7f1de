package path

import (
	"errors"
	"maps"
	"slices"
	"time"
)

// The kernel does not always report the end of a subflow: after a failed checksum it resets the subflow without an
// event (docs/kernel-behaviour.md). A subflow that is missing from a complete sample is gone. Three precautions
// prevent a wrong conclusion:
//
//   - A sample is complete only if it was taken after all events handled so far. So it includes every subflow
//     established since then.
//   - The subflow is looked up by itself first, because a list that is read in parts may skip one.
//   - If no subflow of a connection is left, the connection itself is probably ending, and its event is on the way.
//     It gets endsWithin to arrive.
//
// The judgement follows verdictDelay later, so that an event still to be read can tell the cause.
//
// Nor does the kernel report the end of a connection that the other end resets. A connection that was missing from the
// complete samples for endsWithin is looked up, again and again if it still exists.

const (
	// endsWithin is the time in which the event about a connection's end must arrive.
	endsWithin = 5 * time.Second
	// acceptedEvery is the number of complete samples, one a second, after which the accepted connections are looked up.
	// Their subflows are not sampled.
	acceptedEvery = 60
)

var (
	errVanished = errors.New("the subflow ended without a kernel event")
	errCorrupt  = errors.New("data arrived changed (checksum error)")
	errReported = errors.New("the server reports that data arrived changed")
)

// checksums counts the failed checksums on this host, as last reported and as of the last complete samples.
type checksums struct {
	known  bool
	latest uint64
	before [3]uint64 // the newest first; each counted before its sample was taken
}

func (k *checksums) sampled(count uint64) {
	if !k.known {
		k.before = [3]uint64{count, count, count}
	}
	k.known, k.latest = true, count
	k.before = [3]uint64{count, k.before[0], k.before[1]}
}

// samples numbers the complete samples, and remembers what they show about subflows that ended without an event.
type samples struct {
	last      uint32    // number of the last complete sample
	at        time.Time // when it was taken
	before    time.Time // when the one before was taken
	checksums checksums
	vanished  []ended // subflows that recently ended without an event
}

// begin starts a complete sample. It drops entries that are too old to be compared with later ones.
func (sa *samples) begin(checksumErrors uint64, now time.Time) {
	sa.last++
	sa.at, sa.before = now, sa.at
	sa.checksums.sampled(checksumErrors)
	sa.vanished = slices.DeleteFunc(sa.vanished, func(v ended) bool { return v.after+2 < sa.last })
}

// lacks reports whether s is established but was not in the last complete sample.
func (sa *samples) lacks(s *subflow) bool { return s.up && s.sampled != sa.last }

// ending reports whether the connection itself may be ending: the last complete sample included
// none of its subflows, while a recent one did.
func (sa *samples) ending(c *conn, now time.Time) bool {
	sampled := func(s *subflow) bool { return s.up && s.sampled == sa.last }
	return !c.has(sampled) && now.Sub(c.seen) < endsWithin
}

// vanish records that s ended without an event.
func (sa *samples) vanish(s *subflow, checksumErrors uint64, now time.Time) ended {
	if !sa.checksums.known {
		sa.checksums.sampled(checksumErrors)
	}
	sa.checksums.latest = checksumErrors
	e := ended{
		subflow: s, err: errVanished, silent: true, judge: now.Add(verdictDelay),
		after: sa.last, failedBefore: sa.checksums.before[2],
	}
	sa.vanished = append(sa.vanished, e)
	return e
}

// explain sets the cause of a vanished subflow from an event that arrived later.
func (sa *samples) explain(c *conn, ev SubflowClosed) {
	for i := range c.ended {
		if e := &c.ended[i]; e.silent && e.local == ev.Local && e.remote == ev.Remote {
			e.silent, e.err = false, ev.cause(e.subflow)
			sa.vanished = slices.DeleteFunc(sa.vanished, func(v ended) bool { return v.subflow == e.subflow })
		}
	}
}

// corrupted reports whether data that arrived over e was changed. The kernel counts failed checksums for the whole
// host, not by subflow. So the result is true only if there was a failure for each subflow that recently ended
// without an event, and all of these went through one waypoint.
func (sa *samples) corrupted(e *ended) bool {
	if !e.silent || e.detour == nil {
		return false
	}
	n := uint64(0)
	for _, v := range sa.vanished {
		if v.after+1 < e.after {
			continue // vanished before the count that e is compared with
		}
		if v.detour == nil || v.detour.Waypoint != e.detour.Waypoint {
			return false
		}
		n++
	}
	return sa.checksums.latest >= e.failedBefore+n
}

// lookForMissing requests a lookup of every subflow missing from a complete sample.
func (m *Manager) lookForMissing(now time.Time) {
	losers := m.conns.where(func(c *conn) bool {
		return c.managed() && c.has(m.samples.lacks) && !m.samples.ending(c, now)
	})
	for _, c := range losers {
		for _, s := range c.subflows {
			if m.samples.lacks(s) {
				m.out.do(Measure{c.token, s.local, s.remote})
			}
		}
	}
}

// lookForEnded requests a lookup of every connection that may have ended without an event.
func (m *Manager) lookForEnded(now time.Time) {
	for _, c := range m.conns.where(func(c *conn) bool { return now.Sub(c.seen) >= endsWithin }) {
		m.out.do(LookUp{c.token})
	}
	if m.samples.last%acceptedEvery != 0 {
		return
	}
	for _, t := range slices.Sorted(maps.Keys(m.doors)) {
		m.out.do(LookUp{t})
	}
	for _, t := range slices.Sorted(maps.Keys(m.announcements.byToken)) {
		m.out.do(LookUp{t})
	}
}

// subflowMissing handles the kernel's answer that a subflow does not exist.
func (m *Manager) subflowMissing(t turn, ev SubflowMissing) {
	if s := t.byAddrs(ev.Local, ev.Remote); s != nil && s.up && t.managed() && !m.samples.ending(t.conn, t.now) {
		t.end(m.samples.vanish(s, ev.ChecksumErrors, t.now))
	}
}
