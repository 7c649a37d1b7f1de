package giving

import "time"

// Terms are what the operator's configuration allows.
type Terms struct {
	Hours Hours
	Quota uint64 // bytes a month; 0: no quota
}

// Off is the operator's word that nothing is to be given for now.
type Off struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"` // zero: until it is taken back
}

// Over tells whether t is after the end.
func (o *Off) Over(t time.Time) bool { return !o.Until.IsZero() && !t.Before(o.Until) }

// Cause is why a waypoint gives nothing.
type Cause uint8

// The causes. Where there are several, the one that comes first here is told.
const (
	Gives Cause = iota
	SwitchedOff
	QuotaUsed
	OutsideHours
)

func (c Cause) String() string {
	return [...]string{"gives", "switched-off", "quota-traffic", "outside-hours"}[c]
}

// Standing is what the terms come to at a time.
type Standing struct {
	Cause Cause
	// Until is when the waypoint gives again, all causes considered, as things are now. Zero: that
	// is not known, or it gives.
	Until time.Time
}

// Closed tells whether nothing is given.
func (s Standing) Closed() bool { return s.Cause != Gives }

// Equal tells whether there is nothing new to tell.
func (s Standing) Equal(o Standing) bool { return s.Cause == o.Cause && s.Until.Equal(o.Until) }

// Spent tells whether the quota is used up.
func (t Terms) Spent(used uint64) bool { return t.Quota > 0 && used >= t.Quota }

// Stand says what the terms come to: now, with what was used in this month.
func (t Terms) Stand(now time.Time, off *Off, used uint64) Standing {
	spent := t.Spent(used)
	renewed := NextMonth(now)
	var s Standing
	// Each turn leads past the end of a cause, so that there are few.
	for at := now; ; {
		var cause Cause
		var end time.Time
		known := true
		switch {
		case off != nil && !off.Over(at):
			cause, end, known = SwitchedOff, off.Until, !off.Until.IsZero()
		case spent && at.Before(renewed):
			cause, end = QuotaUsed, renewed
		case !t.Hours.Open(at):
			cause = OutsideHours
			end, known = t.Hours.Next(at)
		default:
			s.Until = at
			if s.Cause == Gives {
				s.Until = time.Time{}
			}
			return s
		}
		if s.Cause == Gives {
			s.Cause = cause
		}
		if !known {
			return s
		}
		at = end.In(now.Location())
	}
}
