package policy

import (
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/path/words"
)

// Rest is the reason why a detour is not used for now.
type Rest struct {
	Cause RestCause
	Since time.Time // when it began, for RestsBlocked and RestsBlamed
	Err   error     // last failure, for RestsFailed, RestsBlocked, RestsBlamed, RestsUnready and RestsSpent; nil: an orderly end
	// LastResort is the time from which a connection without another detour may try this one. Zero: never.
	LastResort time.Time
}

// RestCause classifies the reasons for a rest.
type RestCause uint8

const (
	// RestsFailed means that a subflow over the detour to this server failed recently.
	RestsFailed RestCause = iota
	// RestsBlocked means that the path lets none of the detour's SYNs through.
	RestsBlocked
	// RestsTried means that other connections are testing whether the path lets the SYNs through, or whether the
	// waypoint forwards again after it was silent.
	RestsTried
	// RestsUnready means that this host cannot use the detour now.
	RestsUnready
	// RestsBlamed means that data arrived changed, or did not arrive; see path.Blame.
	RestsBlamed
	// RestsNoAddress means that this host lacks the source address of the detour's subflows.
	RestsNoAddress
	// RestsUnwanted means that the operator does not want its waypoint; see path.Steering.
	RestsUnwanted
	// RestsOverQuota means that its path has no quota left; see path.Rule.
	RestsOverQuota
	// RestsLimited means that its path is limited to a rate of 0; see path.Rule.
	RestsLimited
	// RestsSpent means that a budget of bytes is used up; see path.Config.
	RestsSpent
)

// IsLastResort reports whether a connection may try the detour if it has no other.
func (r Rest) IsLastResort(now time.Time) bool {
	return !r.LastResort.IsZero() && !now.Before(r.LastResort)
}

// Lasts reports whether the rest has no known end.
func (r Rest) Lasts() bool {
	return r.Cause == RestsNoAddress || r.Cause == RestsUnwanted || r.Cause == RestsOverQuota || r.Cause == RestsLimited
}

// Words returns the reason as text for a detour of kind k.
func (r Rest) Words(k Kind) string {
	switch r.Cause {
	case RestsBlocked:
		return fmt.Sprintf("%v does not get through on this path since %s (%s)", k, r.Since.Format("15:04"), words.Failure(r.Err))
	case RestsBlamed:
		return fmt.Sprintf("%v through this waypoint has not been used since %s: %s", k, r.Since.Format("15:04"), words.Failure(r.Err))
	case RestsTried:
		return fmt.Sprintf("%v is being tried by other connections", k)
	case RestsUnready:
		return fmt.Sprintf("%v is not ready: %s", k, words.Failure(r.Err))
	case RestsNoAddress:
		return fmt.Sprintf("%v has no address on this host", k)
	case RestsOverQuota:
		return "its quota is used up"
	case RestsLimited:
		return "its rate is limited to 0"
	case RestsUnwanted:
		return "you do not want this waypoint (dcol use, dcol avoid)"
	case RestsSpent:
		return r.Err.Error()
	default:
		return fmt.Sprintf("%v rests after a failure: %s", k, words.Failure(r.Err))
	}
}

var restCodes = [...]string{
	RestsFailed: "rests-failed", RestsBlocked: "rests-blocked", RestsTried: "rests-tried", RestsUnready: "rests-unready",
	RestsBlamed: "rests-harm", RestsNoAddress: "rests-no-address", RestsUnwanted: "rests-unwanted", RestsOverQuota: "rests-quota",
	RestsLimited: "rests-limited", RestsSpent: "rests-budget",
}
