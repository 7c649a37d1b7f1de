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

// Off is set while the operator has closed the waypoint.
type Off struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"` // zero: until the operator opens it
}

// Over reports whether t is after the end.
func (o *Off) Over(t time.Time) bool { return !o.Until.IsZero() && !t.Before(o.Until) }

// Cause is the reason why a waypoint is closed.
type Cause uint8

// The causes. If there are several, Standing has the first of them in this order.
const (
	Gives Cause = iota
	SwitchedOff
	QuotaUsed
	OutsideHours
)

func (c Cause) String() string {
	return [...]string{"gives", "switched-off", "quota-traffic", "outside-hours"}[c]
}

// Code returns the code of refusals for the cause; 0 if the waypoint is open.
func (c Cause) Code() wire.Code {
	return [...]wire.Code{0, wire.SwitchedOff, wire.QuotaTraffic, wire.OutsideHours}[c]
}

// Standing says whether a waypoint is open at a time; if not, the cause, and the time when it opens again.
type Standing struct {
	Cause Cause
	// Until is the time when the waypoint opens again, by all causes that are known now. Zero: that is
	// not known, or it is open.
	Until time.Time
}

// Closed reports whether the waypoint is closed.
func (s Standing) Closed() bool { return s.Cause != Gives }

// Equal reports whether two standings are the same.
func (s Standing) Equal(o Standing) bool { return s.Cause == o.Cause && s.Until.Equal(o.Until) }

// Spent reports whether the quota is used up.
func (t Terms) Spent(used uint64) bool { return t.Quota > 0 && used >= t.Quota }

// Stand returns the standing now, after used bytes in this month.
func (t Terms) Stand(now time.Time, off *Off, used uint64) Standing {
	spent := t.Spent(used)
	renewed := NextMonth(now)
	var s Standing
	// Each round moves at past the end of a cause, so there are few rounds.
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
