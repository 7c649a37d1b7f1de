package path

import (
	"errors"
	"slices"
	"time"
)

// The kernel does not always report the end of a subflow: after a failed checksum it resets the
// subflow and sends no event (docs/kernel-behaviour.md). A subflow missing from a complete sample
// is gone. Three precautions avoid a premature conclusion:
//
//   - A sample is complete only if it was taken after all events handled so far, so that
//     it includes every subflow established since.
//   - The subflow is looked up by itself first, because a list that is read in parts
//     may skip one.
//   - If no subflow of a connection is left, the connection itself is probably ending
//     and its event on the way. It gets endsWithin to arrive.
//
// The judgement follows verdictDelay later, so that an event still to be read can provide the
// cause.

const endsWithin = 5 * time.Second

var (
	errVanished = errors.New("the subflow ended without a kernel event")
	errCorrupt  = errors.New("data arrived changed (checksum error)")
)

// checksums counts the failed checksums on this host, at the last report and at the last complete
// samples.
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

// vanished is a subflow that ended without an event.
type vanished struct {
	*subflow
	after uint64 // the last complete sample at that time
}

// corrupted reports whether data that arrived over e was changed. Checksum failures are counted for
// the whole host, not by subflow. So the result is true only if there was one failure for each
// subflow that recently ended without an event, and all these went through one waypoint.
func (m *Manager) corrupted(e *ended) bool {
	if !e.silent || e.detour == nil {
		return false
	}
	n := uint64(0)
	for _, v := range m.vanished {
		if v.after+1 < e.after {
			continue // before the count that e is compared with
		}
		if v.detour == nil || v.detour.Waypoint != e.detour.Waypoint {
			return false
		}
		n++
	}
	return m.checksums.latest >= e.failedBefore+n
}

// lookForMissing requests a lookup of every subflow missing from a complete sample.
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

// missing reports whether s is established but was not in the latest complete sample.
func (m *Manager) missing(s *subflow) bool { return s.up && s.round != m.round }

// ending reports whether the connection itself may be ending: the last complete sample included
// none of its subflows, while a recent one did.
func (m *Manager) ending(c *conn, now time.Time) bool {
	sampled := func(s *subflow) bool { return s.up && s.round == m.round }
	return !c.has(sampled) && now.Sub(c.seen) < endsWithin
}

// subflowMissing handles the kernel's answer that a subflow does not exist.
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

// forgetVanished drops entries too old to be compared with later ones.
func (m *Manager) forgetVanished() {
	m.vanished = slices.DeleteFunc(m.vanished, func(v vanished) bool { return v.after+2 < m.round })
}

// explain gives a vanished subflow the cause from an event that arrived later.
func (m *Manager) explain(c *conn, ev SubflowClosed) {
	for i := range c.ended {
		if e := &c.ended[i]; e.silent && e.local == ev.Local && e.remote == ev.Remote {
			e.silent, e.err = false, ev.cause()
			m.vanished = slices.DeleteFunc(m.vanished, func(v vanished) bool { return v.subflow == e.subflow })
		}
	}
}
