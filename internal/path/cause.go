package path

import (
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/path/budget"
	"github.com/detour-collective/dcol/internal/path/policy"
	"github.com/detour-collective/dcol/internal/path/words"
)

// Cause classifies the reasons for the use of a subflow, and for leaving its path.
type Cause uint8

const (
	// CauseNone means that nothing was decided, as for a direct path that carries.
	CauseNone Cause = iota
	// CauseChosen means that the detour was chosen.
	CauseChosen
	// CauseStandby means that the policy lets another path carry.
	CauseStandby
	// CauseDoubted means that nothing comes over the path while others are busy. It may turn out to work.
	CauseDoubted
	// CauseSilent means that nothing came over the path while another worked.
	CauseSilent
	// CauseStalled means that the subflow made no progress while its connection did.
	CauseStalled
	// CauseOverdue means that messages over the path were not answered, or did not arrive.
	CauseOverdue
	// CauseHarm means that data arrived changed, or that the waypoint harmed other connections.
	CauseHarm
	// CauseLossy means that the path lost too many packets.
	CauseLossy
	// CauseMessages means that another path carries the messages, or will if the connection has messages.
	CauseMessages
	// CauseSlower means that messages wait less on another path.
	CauseSlower
	// CauseGivesLess means that another waypoint is expected to give bulk traffic more.
	CauseGivesLess
	// CauseCollapsed means that the rate of bulk traffic collapsed.
	CauseCollapsed
	// CauseLoaded means that the waypoint reports that it is loaded.
	CauseLoaded
	// CauseYields means that another waypoint takes the place.
	CauseYields
	// CauseOmitted means that the subflow stands by for a moment, to measure what the connection gets without it.
	CauseOmitted
	// CauseAddsNothing means that bulk traffic gets as much without the path.
	CauseAddsNothing
	// CauseBurden means that the path holds up the others for more than it is worth.
	CauseBurden
	// CauseLine means that this host's own line is the bottleneck.
	CauseLine
	// CauseBudget means that a budget of bytes is used up.
	CauseBudget
	// CauseLimited means that the policy limits the rate of the path.
	CauseLimited
	// CauseSurplus means that the operator lowered the number of subflows.
	CauseSurplus
	// CauseTried means that the waypoint was tried beside the others, which give enough.
	CauseTried
	// CauseUnwanted means that the operator does not want the waypoint.
	CauseUnwanted
	// CauseOtherWanted means that the operator wants another waypoint to be taken first.
	CauseOtherWanted
	// CauseWithdrawn means that the waypoint is not used any more.
	CauseWithdrawn
	// CauseMoved means that the detour's path has moved.
	CauseMoved
	// CauseRefreshed means that a new subflow takes the place, because the old one was slow or silent.
	CauseRefreshed
	// CauseNoAddress means that this host lost the subflow's source address.
	CauseNoAddress
	// CauseClosed means that the other end closed the subflow, or that it broke.
	CauseClosed
)

var causeCodes = [...]string{
	CauseChosen: "chosen", CauseStandby: "standby", CauseDoubted: "doubted", CauseSilent: "silent", CauseStalled: "stalled", CauseOverdue: "overdue", CauseHarm: "harm",
	CauseLossy: "lossy", CauseMessages: "messages", CauseSlower: "slower", CauseGivesLess: "less-goodput", CauseCollapsed: "collapsed",
	CauseLoaded: "loaded", CauseYields: "yields", CauseOmitted: "omitted", CauseAddsNothing: "adds-nothing", CauseBurden: "burden",
	CauseLine: "line", CauseBudget: "budget", CauseLimited: "limited", CauseSurplus: "surplus", CauseTried: "tried", CauseUnwanted: "unwanted",
	CauseOtherWanted: "other-wanted",
	CauseWithdrawn:   "withdrawn", CauseMoved: "moved", CauseRefreshed: "refreshed", CauseNoAddress: "no-address", CauseClosed: "closed",
}

// Code returns a stable word for the cause, for programs. It is empty for CauseNone.
func (c Cause) Code() string { return causeCodes[c] }

// SubflowReason is the reason for the present use of a subflow, or for leaving its path. The zero value means that nothing
// was decided.
type SubflowReason struct {
	Cause Cause
	// Budget is the budget that is used up, for CauseBudget.
	Budget budget.Scope
	// chosen is set for CauseChosen.
	chosen *chosen
	// Other compares the path with the one that is used instead. Nil: none was compared.
	Other *policy.Comparison
	// Numbers has what was measured on the path itself. Nil: nothing decided.
	Numbers *Numbers
}

// Numbers are what a decision about a subflow used. Those that do not belong to its cause are zero.
type Numbers struct {
	// Loss is the share of packets that the path lost.
	Loss float64
	// Goodput is the rate of bulk traffic on the path, and Before its earlier rate, in bits of payload a second.
	Goodput, Before float64
	// With and Without are the rates of bulk traffic on all paths, with and without this one.
	With, Without float64
	// Missed, Held and Carried are as in Verdict.
	Missed, Held, Carried uint64
	// Silent is the time for which nothing came, and Unanswered the number of probes without an answer.
	Silent     time.Duration
	Unanswered int
	// Limit is the highest rate that the subflow may have, in bits a second.
	Limit float64
	// Err is the error that ended the subflow, or the harm that it did. It is nil after an orderly end.
	Err error
}

// Compared returns the comparisons with other paths that decided.
func (r *SubflowReason) Compared() []policy.Comparison {
	switch {
	case r.chosen != nil:
		return r.chosen.compared()
	case r.Other != nil:
		return []policy.Comparison{*r.Other}
	default:
		return nil
	}
}

// limitedTo adds the highest rate that the subflow may have, in bits a second.
func (r *SubflowReason) limitedTo(rate float64) {
	if r.Cause == CauseNone {
		r.Cause = CauseLimited
	}
	if r.Numbers == nil {
		r.Numbers = &Numbers{}
	}
	r.Numbers.Limit = rate
}

// reason returns why a subflow is set aside.
func (a *aside) reason() SubflowReason {
	v := &a.why
	r := SubflowReason{Cause: asideCauses[a.cause]}
	switch a.cause {
	case lossy:
		r.Numbers = &Numbers{Loss: v.Loss}
		if a.times > 0 { // otherwise the subflow began set aside, and nothing was compared
			r.Other = &policy.Comparison{Waypoint: v.Waypoint, Loss: v.Loss, OtherLoss: v.OtherLoss}
		}
	case standsBy:
		if v.OtherWait > 0 { // otherwise the subflow began set aside, because messages are likely
			r.Other = v.byWait()
		}
	case spent:
		r.Budget = a.scope
	case yieldsPlace:
		r.Other = &policy.Comparison{Waypoint: v.Waypoint}
	case addsNothing, addedNothing:
		switch {
		case v.isBurden():
			r.Cause, r.Numbers = CauseBurden, &Numbers{Missed: v.Missed, Held: v.Held, Carried: v.Carried}
			return r
		case v.With == 0:
			r.Cause = CauseOmitted
			return r
		case v.Line:
			r.Cause = CauseLine
		}
		r.Numbers = &Numbers{With: v.With, Without: v.Without}
	default:
	}
	return r
}

var asideCauses = [...]Cause{
	lossy: CauseLossy, standsBy: CauseMessages, spent: CauseBudget, yieldsPlace: CauseYields, addsNothing: CauseAddsNothing,
	behindLine: CauseLine, addedNothing: CauseAddsNothing, surplus: CauseSurplus,
}

// byWait compares the waits of messages.
func (v *Verdict) byWait() *policy.Comparison {
	return &policy.Comparison{Waypoint: v.Waypoint, Wait: v.Wait, OtherWait: v.OtherWait, Measured: true, Loss: v.Loss, OtherLoss: v.OtherLoss}
}

// leftWords returns why the path was left, as a clause in the past tense that calls the path "it".
func (r *SubflowReason) leftWords() string {
	n, x := Numbers{}, policy.Comparison{}
	if r.Numbers != nil {
		n = *r.Numbers
	}
	if r.Other != nil {
		x = *r.Other
	}
	switch r.Cause {
	case CauseStandby:
		return "the policy lets another path carry"
	case CauseSilent:
		return fmt.Sprintf("nothing came over it for %s while another path worked%s", words.Seconds(n.Silent), unansweredWords(n.Unanswered))
	case CauseStalled:
		return fmt.Sprintf("it made no progress for %s while the connection did", words.Seconds(n.Silent))
	case CauseOverdue:
		return fmt.Sprintf("nothing came over it for %s in the middle of messages", words.Seconds(n.Silent))
	case CauseHarm:
		return "it did harm: " + words.Failure(n.Err)
	case CauseLossy:
		if r.Other == nil {
			return fmt.Sprintf("it lost %.1f %% of the packets", 100*n.Loss)
		}
		return fmt.Sprintf("it lost %.1f %% of the packets, %s %.1f %%", 100*n.Loss, pathWords(x.Waypoint), 100*x.OtherLoss)
	case CauseSlower:
		return fmt.Sprintf("messages took %s over it, %s over %s", waitWithLoss(x.Wait, x.Loss), waitWithLoss(x.OtherWait, x.OtherLoss), pathWords(x.Waypoint))
	case CauseGivesLess:
		return fmt.Sprintf("bulk traffic got %s over it, and could expect %s of %s", words.Mbit(x.Goodput), words.Mbit(x.OtherGoodput), x.Waypoint)
	case CauseCollapsed:
		return fmt.Sprintf("its rate fell from %s to %s", words.Mbit(n.Before), words.Mbit(n.Goodput))
	case CauseLoaded:
		return "its waypoint said that it was loaded"
	case CauseYields:
		return yieldWords(&n, &x)
	case CauseAddsNothing:
		return fmt.Sprintf("bulk traffic got %s without it, %s with it", words.Mbit(n.Without), words.Mbit(n.With))
	case CauseLine:
		return fmt.Sprintf("this host's own line was the bottleneck: bulk traffic got %s without it, %s with it", words.Mbit(n.Without), words.Mbit(n.With))
	case CauseBurden:
		return burdenWords(n.Missed, n.Held, n.Carried)
	case CauseBudget:
		return spentBudget(r.Budget, "was")
	case CauseLimited:
		if n.Limit == 0 {
			return "the policy allows no traffic over it now"
		}
		return "the policy limits it to " + words.Mbit(n.Limit)
	case CauseSurplus:
		return "the configuration allowed fewer subflows"
	case CauseTried:
		if x.OtherGoodput == 0 {
			return "it was tried beside the others, which give enough"
		}
		return fmt.Sprintf("it carried %s beside %s, which carried %s", words.Mbit(x.Goodput), x.Waypoint, words.Mbit(x.OtherGoodput))
	case CauseUnwanted:
		return "you did not want its waypoint (dcol use, dcol avoid)"
	case CauseOtherWanted:
		return "you wanted another waypoint to be taken first (dcol use)"
	case CauseWithdrawn:
		return "its waypoint is not used any more"
	case CauseMoved:
		return "it takes another way now, and a new subflow took its place"
	case CauseRefreshed:
		if n.Before > 0 {
			return fmt.Sprintf("its rate fell from %s to %s, so the policy replaced it", words.Mbit(n.Before), words.Mbit(n.Goodput))
		}
		return "nothing got through over it any more, so the policy replaced it"
	case CauseNoAddress:
		return "this host lost the address from which it started"
	case CauseClosed:
		if n.Err == nil {
			return "the other end closed it"
		}
		return "it broke: " + n.Err.Error()
	default:
		return "another path took its place"
	}
}

// pathWords names the path through a waypoint, or the direct path if the name is empty.
func pathWords(waypoint string) string {
	if waypoint == "" {
		return "the direct path"
	}
	return "the path through " + waypoint
}

func unansweredWords(probes int) string {
	switch probes {
	case 0:
		return ""
	case 1:
		return ", and a probe was not answered"
	default:
		return fmt.Sprintf(", and %d probes were not answered", probes)
	}
}

// yieldWords returns why a detour gave its place to a waypoint.
func yieldWords(n *Numbers, x *policy.Comparison) string {
	switch {
	case n.With > 0:
		return fmt.Sprintf("bulk traffic got %s with it, %s with %s before", words.Mbit(n.With), words.Mbit(n.Without), x.Waypoint)
	case x.OtherGoodput > 0:
		return fmt.Sprintf("it carried %s, and %s could give %s", words.Mbit(x.Goodput), x.Waypoint, words.Mbit(x.OtherGoodput))
	case x.Goodput > 0:
		return fmt.Sprintf("its rate was known (%s), and %s was tried in its place", words.Mbit(x.Goodput), x.Waypoint)
	default:
		return fmt.Sprintf("%s was tried in its place", x.Waypoint)
	}
}

// burdenWords returns what waited for a subflow that was a burden.
func burdenWords(missed, held, carried uint64) string {
	if held > 0 {
		return fmt.Sprintf("%d KB that had arrived on other paths waited for it, and it carried %d KB", held/1000, carried/1000)
	}
	return fmt.Sprintf("the other paths could have carried %d KB while they waited for it, and it carried %d KB", missed/1000, carried/1000)
}
