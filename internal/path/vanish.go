package path

import (
	"errors"
	"slices"
	"time"
)

// The kernel does not always say that a subflow ended: after a failed checksum it
// resets the subflow and sends no event (docs/kernel-behaviour.md). What is missing from a
// complete sample is gone. Three things keep that from being believed too early:
//
//   - A sample is complete only if it was taken after all events handled so far, so that
//     what came up since is not missed.
//   - The subflow is looked up by itself first, because a list that is read in parts
//     may skip one.
//   - Where no subflow of a connection is left, the connection itself is probably
//     ending, and its event is on the way: that is given endsWithin.
//
// The verdict comes verdictDelay later, so that an event that was still to be read
// can tell the cause.

const endsWithin = 5 * time.Second

var (
	errVanished = errors.New("the subflow ended without a word")
	errCorrupt  = errors.New("data arrived changed (checksum error)")
)

// checksums is how many checksums failed on this host, as last told and as of the last
// complete samples.
type checksums struct {
	known  bool
	latest uint64
	before [3]uint64 // the newest first; each was counted before its sample was taken
}

func (k *checksums) sampled(count uint64) {
	if !k.known {
		k.before = [3]uint64{count, count, count}
	}
	k.known, k.latest = true, count
	k.before = [3]uint64{count, k.before[0], k.before[1]}
}

// vanished is a subflow that ended without a word.
type vanished struct {
	*subflow
	after uint64 // the complete sample that was the last one then
}

// corrupted reports whether data that came by e arrived changed. Checksums are counted for
// the whole host and not by subflow. So it can be told only where one failed for each
// subflow that ended without a word of late, and all these went through one waypoint.
func (m *Manager) corrupted(e *ended) bool {
	if !e.silent || e.detour == nil {
		return false
	}
	n := uint64(0)
	for _, v := range m.vanished {
		if v.after+1 < e.after {
			continue // before the checksums were counted that e is measured against
		}
		if v.detour == nil || v.detour.Waypoint != e.detour.Waypoint {
			return false
		}
		n++
	}
	return m.checksums.latest >= e.failedBefore+n
}

// lookForMissing has every subflow looked up that a complete sample does not have.
func (m *Manager) lookForMissing(now time.Time) {
	var losers []*conn
	for _, c := range m.conns {
		if c.managed() && c.has(m.missing) && !m.ending(c, now) {
			losers = append(losers, c)
		}
	}
	slices.SortFunc(losers, byAge)
	for _, c := range losers {
		for _, s := range c.subflows {
			if m.missing(s) {
				m.do(Measure{c.token, s.local, s.remote})
			}
		}
	}
}

// missing reports whether s is up, but was not in the complete sample just taken.
func (m *Manager) missing(s *subflow) bool { return s.up && s.round != m.round }

// ending reports whether the connection itself may be what ends: the last complete
// sample had none of its subflows, and one shortly before did.
func (m *Manager) ending(c *conn, now time.Time) bool {
	sampled := func(s *subflow) bool { return s.up && s.round == m.round }
	return !c.has(sampled) && now.Sub(c.seen) < endsWithin
}

// subflowMissing: the kernel was asked for one subflow and does not have it.
func (m *Manager) subflowMissing(c *conn, ev SubflowMissing, now time.Time) {
	s := c.byAddrs(ev.Local, ev.Remote)
	if s == nil || !s.up || !c.managed() || m.ending(c, now) {
		return
	}
	if !m.checksums.known {
		m.checksums.sampled(ev.ChecksumErrors)
	}
	m.checksums.latest = ev.ChecksumErrors
	m.vanished = append(m.vanished, vanished{s, m.round})
	m.end(c, ended{
		subflow: s, err: errVanished, silent: true, judge: now.Add(verdictDelay),
		after: m.round, failedBefore: m.checksums.before[2],
	}, now)
}

// forgetVanished drops what is too old to stand beside what vanishes from now on.
func (m *Manager) forgetVanished() {
	m.vanished = slices.DeleteFunc(m.vanished, func(v vanished) bool { return v.after+2 < m.round })
}

// explain gives a subflow that ended without a word the cause that its event tells
// after all.
func (m *Manager) explain(c *conn, ev SubflowClosed) {
	for i := range c.ended {
		if e := &c.ended[i]; e.silent && e.local == ev.Local && e.remote == ev.Remote {
			e.silent, e.err = false, ev.Err
			m.vanished = slices.DeleteFunc(m.vanished, func(v vanished) bool { return v.subflow == e.subflow })
		}
	}
}
