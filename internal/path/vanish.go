package path

import (
	"errors"
	"slices"
	"time"
)

// The kernel does not always say that a subflow ended: after a failed checksum it
// resets the subflow and sends no event (docs/kernel.md). What is missing from a
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

// checksums counts failed checksums, as of the last two complete samples.
type checksums struct {
	known       bool
	before, now uint64
}

func (k *checksums) sampled(count uint64) {
	if !k.known {
		k.now = count
	}
	k.known, k.before, k.now = true, k.now, count
}

// rose reports whether checksums failed since the last sample but one.
func (k *checksums) rose(count uint64) bool { return k.known && count > k.before }

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
	e := ended{subflow: s, err: errVanished, silent: true, judge: now.Add(verdictDelay)}
	if m.checksums.rose(ev.ChecksumErrors) {
		e.err = errCorrupt
	}
	m.end(c, e, now)
}

// explain gives a subflow that ended without a word the cause that its event tells
// after all.
func (c *conn) explain(ev SubflowClosed) {
	for i := range c.ended {
		if e := &c.ended[i]; e.silent && e.local == ev.Local && e.remote == ev.Remote {
			e.silent, e.err = false, ev.Err
		}
	}
}
