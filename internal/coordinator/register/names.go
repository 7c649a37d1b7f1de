package register

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A name belongs to one host. The name of a host whose membership has ended is free some time later, for the same host or
// for another one with an invitation for this name. The keys of expelled hosts stay with the name (Member.Former), so that
// they stay refused.

// maxFormer bounds the expelled hosts of one name, and so the length of its line in the file.
const maxFormer = 64

// freeFrom returns the time from which an invitation may give the name of m to another host, or false if it is taken. The
// name of a host that has left is free once all members were told. That of an expelled host is free when the last of its
// certificates has expired, too, because it may use them at waypoints that have no connection to the coordinator.
func (m *Member) freeFrom() (time.Time, bool) {
	switch {
	case m.Expelled == nil || !m.Expelled.Done || len(m.Former) >= maxFormer:
		return time.Time{}, false
	case m.Expelled.Left:
		return m.Expelled.Counts, true
	}
	return later(m.Until, m.Expelled.Counts), true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// free reports whether an invitation may give the name of m to another host now.
func (m *Member) free(now time.Time) bool {
	from, ok := m.freeFrom()
	return ok && !now.Before(from)
}

// whyTaken explains why the name of m is not free.
func (m *Member) whyTaken(now time.Time) string {
	const day = time.DateOnly
	switch {
	case m.Expelled != nil:
		why := "its holder was expelled on " + m.Expelled.At.UTC().Format(day)
		if m.Expelled.Left {
			why = "its holder left on " + m.Expelled.At.UTC().Format(day)
		}
		from, ok := m.freeFrom()
		switch {
		case ok && now.Before(from):
			why += ", and from " + FormatTime(from) + " on an invitation for this name gives it to another host"
		case ok:
			why += ", and only an invitation for this name gives it to another host"
		}
		return why
	case now.After(m.Until):
		return fmt.Sprintf("its certificate expired on %s, and it may return until %s", m.Until.UTC().Format(day), m.Until.Add(Grace).UTC().Format(day))
	}
	return "a member since " + m.Joined.UTC().Format(day)
}

// expelledHolders returns the expelled hosts that have had the name of m, including its present holder.
func (m *Member) expelledHolders() []Former {
	if !m.isBanned() {
		return m.Former
	}
	return append(slices.Clone(m.Former), Former{m.Key, m.Until, *m.Expelled})
}

// propose returns a free name that resembles a taken one.
func (r *Register) propose(name string) string {
	for n := 2; ; n++ {
		suffix := fmt.Sprintf("-%d", n)
		free := strings.TrimRight(name[:min(len(name), 63-len(suffix))], "-") + suffix
		if r.Member(free) == nil {
			return free
		}
	}
}
