package policy

import (
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/path/words"
)

// CandidateReason tells why a new connection would take a detour or not: the cause, and the numbers that decided.
// Fields that do not belong to the cause are zero.
type CandidateReason struct {
	Cause CandidateCause
	// Chosen is set for CandidateChosen.
	Chosen Reason
	// Rest is set for CandidateRests. Its Err is set for CandidateLastResort, too.
	Rest Rest
	// Loss is the share of packets that the detour lost, for CandidateLossy.
	Loss float64
	// Failures counts the waypoint's recent failures towards the server, for CandidateFailed.
	Failures int
	// Other compares the detour with the one that is taken before it, for the causes that compare. For CandidateLater,
	// it has only the name of that one's waypoint, and none if no detour is taken.
	Other Comparison
	// Wanted is set if the operator wants the other to be taken first, for CandidateLater.
	Wanted bool
}

// Comparison holds the numbers of a path beside those of another. A pair of zeros was not compared.
type Comparison struct {
	Waypoint string // of the other path; empty: the direct path
	// Wait and OtherWait estimate how long a message waits for its answer. Zero means unknown if the other is set.
	Wait, OtherWait time.Duration
	// Measured is set if both waits were measured. Otherwise they are guessed from the round trips of sessions.
	Measured bool
	// Goodput and OtherGoodput are the rates that one more bulk connection may expect, in bits of payload a second.
	Goodput, OtherGoodput float64
	// Loss and OtherLoss are the shares of packets lost.
	Loss, OtherLoss float64
}

// CandidateCause classifies the reasons for taking a detour or not.
type CandidateCause uint8

const (
	// CandidateChosen means that a new connection would take the detour.
	CandidateChosen CandidateCause = iota
	// CandidateRests means that the detour is not to be used for now.
	CandidateRests
	// CandidateLastResort means that nothing arrived through the detour recently.
	CandidateLastResort
	// CandidateLoaded means that the waypoint reports that it is loaded.
	CandidateLoaded
	// CandidateLossy means that the detour lost too many packets recently.
	CandidateLossy
	// CandidateCapped means that the server accepts no more subflows.
	CandidateCapped
	// CandidateSparing means that the budget for the waypoint is nearly used up.
	CandidateSparing
	// CandidateFailed means that subflows through the waypoint to this server failed recently.
	CandidateFailed
	// CandidateLater means that other detours come first, for reasons that are not compared by number.
	CandidateLater
	// CandidateGivesLess means that bulk traffic gets less through the detour.
	CandidateGivesLess
	// CandidateGoodputUnknown means that the goodput through the detour was not measured.
	CandidateGoodputUnknown
	// CandidateSlower means that messages take longer over the detour.
	CandidateSlower
	// CandidateWaitUnknown means that the wait of messages over the detour was not measured.
	CandidateWaitUnknown
	// CandidateDrawn means that another detour, about as good, was picked at random.
	CandidateDrawn
)

var candidateCodes = [...]string{
	CandidateChosen: "chosen", CandidateLastResort: "last-resort", CandidateLoaded: "loaded", CandidateLossy: "lossy",
	CandidateCapped: "server-limit", CandidateSparing: "budget-low", CandidateFailed: "failures", CandidateLater: "later",
	CandidateGivesLess: "less-goodput", CandidateGoodputUnknown: "goodput-unknown", CandidateSlower: "slower",
	CandidateWaitUnknown: "wait-unknown", CandidateDrawn: "lot",
}

// Code returns a stable word for the cause, for programs.
func (r *CandidateReason) Code() string {
	if r.Cause == CandidateRests {
		return restCodes[r.Rest.Cause]
	}
	return candidateCodes[r.Cause]
}

// Compared returns the comparisons with other waypoints that decided.
func (r *CandidateReason) Compared() (list []Comparison) {
	if r.Cause != CandidateChosen {
		if r.Other != (Comparison{}) {
			list = append(list, r.Other)
		}
		return list
	}
	return r.Chosen.Compared()
}

// Words returns the reason as text for a detour.
func (r *CandidateReason) Words(d *Detour) string {
	x := &r.Other
	switch r.Cause {
	case CandidateChosen:
		return r.Chosen.Words(d)
	case CandidateRests:
		return r.Rest.Words(d.Kind)
	case CandidateLastResort:
		return words.Failure(r.Rest.Err) + ", so it is taken only if there is no other"
	case CandidateLoaded:
		return "its waypoint says that it is loaded, so it is taken only if there is no other"
	case CandidateLossy:
		return fmt.Sprintf("it lost %.1f %% of the packets lately, so it is taken only if there is no other", 100*r.Loss)
	case CandidateCapped:
		return "the server accepts no more subflows"
	case CandidateSparing:
		return "a spare: this month's budget for its waypoint is nearly used up (client.budget.waypoint)"
	case CandidateFailed:
		return fmt.Sprintf("a spare: others come first; its waypoint's recent failures towards this server: %d", r.Failures)
	case CandidateGivesLess:
		return fmt.Sprintf("a spare: one more bulk connection may expect %s of it, %s of %s", words.Mbit(x.Goodput), words.Mbit(x.OtherGoodput), x.Waypoint)
	case CandidateGoodputUnknown:
		return fmt.Sprintf("a spare: one more bulk connection may expect %s of %s, and it was not measured yet", words.Mbit(x.OtherGoodput), x.Waypoint)
	case CandidateSlower:
		return fmt.Sprintf("a spare: messages take %s over it, %s through %s", words.MS(x.Wait), words.MS(x.OtherWait), x.Waypoint)
	case CandidateWaitUnknown:
		return fmt.Sprintf("a spare: messages take %s through %s, and it was not measured yet", words.MS(x.OtherWait), x.Waypoint)
	case CandidateDrawn:
		return fmt.Sprintf("a spare: about as good as %s, which was drawn by lot", x.Waypoint)
	default:
		return "a spare: others come first"
	}
}

// Change returns in words what would change the reason for a detour. It is empty if only time does.
func (r *CandidateReason) Change(d *Detour) string {
	switch r.Cause {
	case CandidateChosen:
		return r.Chosen.Change(d)
	case CandidateLossy:
		return "then it is compared with the others again"
	case CandidateLastResort:
		return "it is compared with the others again when it has rested"
	case CandidateCapped:
		return "it is taken when one of the others fails, or if the server accepts more"
	case CandidateSparing:
		return "it is compared with the others again with a higher budget, or in the next month"
	case CandidateFailed:
		return "then they are forgotten, unless others follow"
	case CandidateLater:
		return r.changeLater(d)
	case CandidateGivesLess:
		return "at more than that it comes first"
	case CandidateSlower:
		return "at less than that it comes first"
	case CandidateGoodputUnknown:
		return "bulk connections try what was not"
	case CandidateWaitUnknown:
		return fmt.Sprintf("one connection in %d tries what was not", ExploreEvery)
	case CandidateDrawn:
		return "another connection may draw it"
	default:
		return ""
	}
}

// changeLater is Change for CandidateLater.
func (r *CandidateReason) changeLater(d *Detour) string {
	switch other := r.Other.Waypoint; {
	case d.Kind.Own():
		return "it is taken when one of the others fails"
	case other == "":
		return "it is taken if the policy of the connection allows more subflows"
	case other == d.Waypoint:
		return fmt.Sprintf("it is taken when the other detour through %s fails", other)
	case r.Wanted:
		return fmt.Sprintf("you want %s to be taken first; dcol use %s prefers this one instead", other, d.Waypoint)
	default:
		return fmt.Sprintf("it is taken when %s fails, or first by dcol use %s", other, d.Waypoint)
	}
}

// SpareReason returns why a usable detour is not taken. taken is the detour that comes before it, or nil.
func (u *Usable) SpareReason(capped bool, taken *Usable) CandidateReason {
	switch {
	case u.LastResort:
		return CandidateReason{Cause: CandidateLastResort, Rest: Rest{Err: u.Err}}
	case !u.Loaded.IsZero():
		return CandidateReason{Cause: CandidateLoaded}
	case !u.Shunned.IsZero():
		return CandidateReason{Cause: CandidateLossy, Loss: u.Loss}
	case capped:
		return CandidateReason{Cause: CandidateCapped}
	case u.Sparing:
		return CandidateReason{Cause: CandidateSparing}
	case u.Failures > 0:
		return CandidateReason{Cause: CandidateFailed, Failures: u.Failures}
	case taken == nil:
		return CandidateReason{Cause: CandidateLater}
	case taken.Waypoint == u.Waypoint || byWill(u, taken) != 0:
		return CandidateReason{Cause: CandidateLater, Other: Comparison{Waypoint: taken.Waypoint}, Wanted: byWill(u, taken) > 0}
	default:
		return u.reasonBehind(taken)
	}
}

// reasonBehind returns why a spare detour comes after the one that is taken.
func (u *Usable) reasonBehind(taken *Usable) CandidateReason {
	byGoodput := Comparison{Waypoint: taken.Waypoint, Goodput: u.Goodput, OtherGoodput: taken.Goodput}
	byWait := Comparison{Waypoint: taken.Waypoint, Wait: u.Wait, OtherWait: taken.Wait, Measured: u.Measured && taken.Measured}
	switch goodput, other := u.goodputClass(), taken.goodputClass(); {
	case goodput < other && u.Gave:
		return CandidateReason{Cause: CandidateGivesLess, Other: byGoodput}
	case goodput < other:
		return CandidateReason{Cause: CandidateGoodputUnknown, Other: byGoodput}
	case goodput > other:
		return CandidateReason{Cause: CandidateLater, Other: Comparison{Waypoint: taken.Waypoint}}
	}
	switch {
	case u.Wait == 0 && taken.Wait == 0:
		return CandidateReason{Cause: CandidateLater, Other: Comparison{Waypoint: taken.Waypoint}}
	case u.Wait == 0:
		return CandidateReason{Cause: CandidateWaitUnknown, Other: byWait}
	case u.waitClass() > taken.waitClass():
		return CandidateReason{Cause: CandidateSlower, Other: byWait}
	default:
		return CandidateReason{Cause: CandidateDrawn, Other: byWait}
	}
}
