package track

import "slices"

// Handover is the move of a connection's data from a subflow that ended to another.
type Handover struct {
	At   float64 `json:"at"` // the first data on the other subflow
	From int     `json:"from"`
	To   int     `json:"to"`
	Gap  float64 `json:"gap"`  // without new data
	Kind string  `json:"kind"` // break-before-make, make-before-break
	Why  string  `json:"why"`  // fin, reset, removed, silent
}

// handovers finds subflows that carried data and ended before the connection's data did.
func (c *connection) handovers() (list []Handover) {
	for _, s := range c.subflows {
		_, last := s.used()
		if last == 0 || s.nextOther == 0 || s.otherIndex < 0 {
			continue
		}
		why, ended := s.gone()
		if why == "" {
			continue
		}
		to := c.subflows[s.otherIndex]
		// Data must have come on the other subflow after this one ended, or instead of it.
		if _, other := to.used(); other <= ended {
			continue
		}
		kind := "make-before-break"
		if began := to.began(); began > last && to.join {
			kind = "break-before-make"
		}
		list = append(list, Handover{
			At: seconds(s.nextOther - c.first), From: s.index, To: to.index, Gap: seconds(s.nextOther - last), Kind: kind, Why: why,
		})
	}
	slices.SortStableFunc(list, func(a, b Handover) int { return int(1e9 * (a.At - b.At)) })
	return list
}

// silence is the time, in nanoseconds, after which a subflow without an answer to its data counts as dead.
const silence = second

// gone returns why a subflow ended, and when; "": it lives.
func (s *subflow) gone() (why string, at int64) {
	switch {
	case s.removed != 0 && (s.end == open || s.removed <= s.endTime):
		return "removed", s.removed
	case s.end != open:
		return s.end.String(), s.endTime
	}
	for side := range s.half {
		h, peer := &s.half[side], &s.half[Side(side).other()]
		// Data was sent again, and nothing has come since, while the connection went on for long enough.
		if h.bytes > 0 && h.ackedLess() && h.lastRe > peer.last && s.c.last-peer.last >= silence {
			return "silent", h.lastNew
		}
	}
	return "", 0
}
