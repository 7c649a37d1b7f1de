package giving

import (
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// Terms are the limits in the operator's configuration.
type Terms struct {
	Hours Hours
	Quota uint64 // bytes a month; 0: no quota
}

// Off is a switch of the operator: nothing is given for now.
type Off struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"` // zero: until it is taken back
}

// Over reports whether t is after the end.
func (o *Off) Over(t time.Time) bool { return !o.Until.IsZero() && !t.Before(o.Until) }

// Cause is why a waypoint gives nothing.
type Cause uint8

// The causes. Where there are several, Standing has the one that comes first here.
const (
	Gives Cause = iota
	SwitchedOff
	QuotaUsed
	OutsideHours
)

func (c Cause) String() string {
	return [...]string{"gives", "switched-off", "quota-traffic", "outside-hours"}[c]
}

// Code returns the refusal that goes with the cause; 0 if the waypoint gives.
func (c Cause) Code() wire.Code {
	return [...]wire.Code{0, wire.SwitchedOff, wire.QuotaTraffic, wire.OutsideHours}[c]
}

// Standing is the state of giving at a time: it gives, or not, for a cause and until a time.
type Standing struct {
	Cause Cause
	// Until is when the waypoint gives again, all causes considered, as things are now. Zero: that
	// is not known, or it gives.
	Until time.Time
}

// Closed reports whether nothing is given.
func (s Standing) Closed() bool { return s.Cause != Gives }

// Equal reports whether two standings are the same.
func (s Standing) Equal(o Standing) bool { return s.Cause == o.Cause && s.Until.Equal(o.Until) }

// Spent reports whether the quota is used up.
func (t Terms) Spent(used uint64) bool { return t.Quota > 0 && used >= t.Quota }

// Stand returns the standing now, with what was used in this month.
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
