package path

import (
	"fmt"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
	"github.com/detour-collective/dcol/internal/path/words"
)

// chosen holds the reason for which a subflow's detour was chosen: the policy's, and what the connection itself saw. Each subflow keeps
// one, so it is small.
type chosen struct {
	policy.Reason
	instead *collapse // the collapsed detour whose place it took; nil: none
	tried   *Tryout   // result of its tryout; nil: none
}

func (w *chosen) equals(v *chosen) bool {
	return w.instead == v.instead && w.tried == v.tried && w.Reason.Equals(&v.Reason)
}

// text returns the whole reason as text. Words is the policy's part of it.
func (w *chosen) text(d *Detour) string {
	parts := []string{w.Words(d)}
	if c := w.instead; c != nil {
		parts = append(parts, fmt.Sprintf("in place of %s, which fell from %s to %s", c.waypoint, words.Mbit(c.was), words.Mbit(c.is)))
	}
	if w.tried != nil {
		parts = append(parts, w.tried.Words())
	}
	return strings.Join(parts, "; ")
}

// compared returns the comparisons with other waypoints that decided, and the collapsed detour whose place was taken. Beside
// that, the detour's own goodput is not known.
func (w *chosen) compared() []policy.Comparison {
	list := w.Compared()
	if c := w.instead; c != nil {
		list = append(list, policy.Comparison{Waypoint: c.waypoint, OtherGoodput: c.is})
	}
	return list
}

// reasons holds the last reasons that were given. Many subflows have the same few, so they share them.
type reasons struct {
	last [8]*chosen
	next int
}

// shared returns a reason that equals w. It must not be changed.
func (x *reasons) shared(w *chosen) *chosen {
	for _, given := range x.last {
		if given != nil && given.equals(w) {
			return given
		}
	}
	x.last[x.next] = w
	x.next = (x.next + 1) % len(x.last)
	return w
}

// Verdict is the reason why a subflow is set aside: its numbers, beside those of the subflow that carries instead.
type Verdict struct {
	// Waypoint is the waypoint of the other subflow. It is empty for the direct path.
	Waypoint string
	// Loss and OtherLoss are shares of packets lost. They are zero if something else decided.
	Loss, OtherLoss float64
	// Wait and OtherWait estimate how long a message waits for its answer, with losses counted as when a carrier is chosen.
	Wait, OtherWait time.Duration
	// Better is set if messages will leave the other subflow for this one, if that lasts.
	Better bool
	// With and Without are the rates of bulk traffic with and without the subflow, in bits a second. They are zero if
	// something else decided, or if they are not known yet.
	With, Without float64
	// Missed, Held and Carried are bytes of the last seconds: what the others missed while they waited for the subflow,
	// what they had brought that waited for it on average, and what it carried. They are zero if something else decided.
	Missed, Held, Carried uint64
	// Line is set if this host's own line seemed to be the bottleneck.
	Line bool
}

// isBurden reports whether the subflow stands by because it was a burden.
func (v *Verdict) isBurden() bool { return v.Missed > 0 || v.Held > 0 }

// text returns the reason as text.
func (a *aside) text() string {
	other := pathWords(a.why.Waypoint)
	take, otherTakes := waitWithLoss(a.why.Wait, a.why.Loss), waitWithLoss(a.why.OtherWait, a.why.OtherLoss)
	switch {
	case a.cause == yieldsPlace:
		return fmt.Sprintf("gives its place to %s", a.why.Waypoint)
	case a.cause == behindLine:
		return "stands by: this host's own line was the bottleneck lately, so it would add nothing"
	case (a.cause == addsNothing || a.cause == addedNothing) && a.why.isBurden():
		return "stands by: " + burdenWords(a.why.Missed, a.why.Held, a.why.Carried)
	case a.cause == addsNothing && a.why.With == 0:
		return "stands by for a moment, to find out what the connection gets without it"
	case a.cause == addsNothing && a.why.Line:
		return fmt.Sprintf("stands by, because this host's own line is the bottleneck: bulk traffic got %s without it, %s with it", words.Mbit(a.why.Without), words.Mbit(a.why.With))
	case a.cause == addedNothing:
		return fmt.Sprintf("stands by: bulk traffic lately got %s without it, %s with it", words.Mbit(a.why.Without), words.Mbit(a.why.With))
	case a.cause == addsNothing:
		return fmt.Sprintf("stands by: bulk traffic got %s without it, %s with it", words.Mbit(a.why.Without), words.Mbit(a.why.With))
	case a.cause == spent:
		return "stands by: " + spentBudget(a.scope, "is")
	case a.cause == standsBy && a.why.OtherWait == 0:
		return "stands by: messages are likely on this connection, and begin on the direct path"
	case a.cause == standsBy && a.why.Better:
		return fmt.Sprintf("stands by: messages take %s over it, %s over %s; it carries them soon if that lasts", take, otherTakes, other)
	case a.cause == standsBy && a.why.Wait < a.why.OtherWait:
		return fmt.Sprintf("stands by: messages take %s over it, hardly less than the %s over %s", take, otherTakes, other)
	case a.cause == surplus:
		return "ends as soon as its data has arrived: the connection has one subflow more than configured"
	case a.cause == standsBy:
		return fmt.Sprintf("stands by: messages take %s over it, %s over %s", take, otherTakes, other)
	case a.times == 0:
		return fmt.Sprintf("stands by until %s: it lost %.1f %% of the packets lately", a.until.Format("15:04"), 100*a.why.Loss)
	default:
		return fmt.Sprintf("stands by until %s: it lost %.1f %% of the packets, %s %.1f %%", a.until.Format("15:04"), 100*a.why.Loss, other, 100*a.why.OtherLoss)
	}
}

// waitWithLoss returns how long messages wait, with the share of lost packets that the time counts.
func waitWithLoss(wait time.Duration, loss float64) string {
	if loss < 0.0005 {
		return words.MS(wait)
	}
	return fmt.Sprintf("%s (%.1f %% lost)", words.MS(wait), 100*loss)
}

// Words returns the result as text.
func (r *Tryout) Words() string {
	switch r.Verdict {
	case TryoutKept:
		return fmt.Sprintf("took the place of %s and stays: %s with it, %s before", r.Instead, words.Mbit(r.Sum), words.Mbit(r.Before))
	case TryoutLost:
		return fmt.Sprintf("took the place of %s for a while: %s with it, %s before; it stays only with %.0f %% more", r.Instead, words.Mbit(r.Sum), words.Mbit(r.Before), 100*(tryoutGain-1))
	case TryoutDisturbed:
		return fmt.Sprintf("took the place of %s, without a result: something else changed", r.Instead)
	case TryoutLeft:
		return fmt.Sprintf("took the place of %s, and was left before it was measured", r.Instead)
	case TryoutUnreached:
		return fmt.Sprintf("was to take the place of %s, but no subflow came up through it", r.Instead)
	default:
		return fmt.Sprintf("carried %s while it was tried", words.Mbit(r.Goodput))
	}
}
