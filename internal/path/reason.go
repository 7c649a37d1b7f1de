package path

import (
	"fmt"
	"strings"
	"time"
)

func notOfferedWords(k Kind) string { return fmt.Sprintf("%v is not offered", k) }

func failureWords(err error) string {
	if err == nil {
		return "closed by the other end"
	}
	return err.Error()
}

// Reason tells why a detour was chosen over others. Each subflow keeps one, so it is small. Text is made from it only
// for display.
type Reason struct {
	better   [nKinds - 1]standing // preferred kinds of the same waypoint that were not chosen: the first n, in the operator's order
	n        uint8
	rests    *[nKinds - 1]Rest // reasons of the resting ones among better; nil: none rests
	carrying string            // another waypoint, passed over because it carries more of the connection; empty: none
	wanted   bool              // the operator wants its waypoint to be taken before others
	explored bool              // it was not measured, and it was taken to measure it
	silent   bool              // nothing arrived through it lately, and there was no other
	fresh    bool              // the connection had no subflow through its waypoint
	failing  string            // another waypoint, passed over because its detours failed; empty: none
	shunned  time.Time         // the time until which its waypoint is avoided because of loss; zero: it is not
	loss     float64           // what it lost then
	faster   *comparison       // against the next best waypoint, by wait; nil: none
	gives    *gain             // against the next best waypoint, by goodput; nil: none
	instead  *collapse         // the collapsed detour whose place it took; nil: none
	tried    *Tryout           // result of its tryout; nil: none
}

// gain is a reason for a detour: bulk traffic gets more through its waypoint than through another, in bits a second.
type gain struct {
	goodput, otherGoodput float64
	other                 string
}

// comparison is a reason for a detour: messages wait less through its waypoint than through another.
type comparison struct {
	wait, otherWait time.Duration
	other           string
	measured        bool // else guessed from the round trips of sessions
}

// equals reports whether two reasons have the same text.
func (w *Reason) equals(v *Reason) bool {
	a, b := *w, *v
	for _, r := range [...]*Reason{&a, &b} {
		r.faster, r.gives = nil, nil
	}
	return a == b && same(w.faster, v.faster) && same(w.gives, v.gives)
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// reasons holds the last reasons that were given. Many subflows have the same few, so they share them.
type reasons struct {
	last [8]*Reason
	next int
}

// shared returns a reason that equals w. It must not be changed.
func (x *reasons) shared(w *Reason) *Reason {
	for _, given := range x.last {
		if given != nil && given.equals(w) {
			return given
		}
	}
	x.last[x.next] = w
	x.next = (x.next + 1) % len(x.last)
	return w
}

// standing tells why a kind of detour of a waypoint was not chosen.
type standing struct {
	kind Kind
	is   uint8
}

const (
	notOffered uint8 = iota
	inUse
	resting
)

// reason returns why best was chosen.
func (r *round) reason(best *Usable) (why Reason) {
	for _, k := range r.order {
		if k == best.Kind || int(why.n) == len(why.better) {
			break
		}
		is, rest := r.standing(best.Waypoint, k)
		if is == resting {
			if why.rests == nil {
				why.rests = new([nKinds - 1]Rest)
			}
			why.rests[why.n] = rest
		}
		why.better[why.n] = standing{k, is}
		why.n++
	}
	why.shunned, why.loss, why.wanted, why.explored, why.silent = best.Shunned, best.Loss, best.Wanted, r.tries(best), best.LastResort
	why.faster, why.gives = r.faster(best), r.gives(best)
	for i := range r.Usable {
		u := &r.Usable[i]
		if u.Waypoint != best.Waypoint && r.allowed(u) && byWill(u, best) <= 0 && r.preferred(u, best) < 0 {
			if r.carried(u.Waypoint) == r.carried(best.Waypoint) {
				why.failing = u.Waypoint
				break
			}
			why.carrying, why.fresh = u.Waypoint, r.carried(best.Waypoint) == 0
			break
		}
	}
	return why
}

// faster compares best with the next waypoint by wait, if messages wait clearly longer there.
func (r *round) faster(best *Usable) (c *comparison) {
	if best.Wait == 0 {
		return nil
	}
	for i := range r.Usable {
		u := &r.Usable[i]
		if u.Waypoint != best.Waypoint && r.allowed(u) && u.Wait > 0 && best.waitClass() < u.waitClass() && (c == nil || u.Wait < c.otherWait) {
			c = &comparison{best.Wait, u.Wait, u.Waypoint, best.Measured && u.Measured}
		}
	}
	return c
}

// gives compares best with the next waypoint by goodput, if bulk traffic gets clearly less there.
func (r *round) gives(best *Usable) (g *gain) {
	if !best.Gave {
		return nil
	}
	for i := range r.Usable {
		u := &r.Usable[i]
		if u.Waypoint != best.Waypoint && r.allowed(u) && u.Gave && u.Goodput > 0 && u.goodputClass() < best.goodputClass() && (g == nil || u.Goodput > g.otherGoodput) {
			g = &gain{best.Goodput, u.Goodput, u.Waypoint}
		}
	}
	return g
}

// compared returns the comparisons with other waypoints that decided. What the detour gives is not known if it took the
// place of a collapsed one.
func (w *Reason) compared() (list []Comparison) {
	if g := w.gives; g != nil {
		list = append(list, Comparison{Waypoint: g.other, Goodput: g.goodput, OtherGoodput: g.otherGoodput})
	}
	if f := w.faster; f != nil {
		list = append(list, Comparison{Waypoint: f.other, Wait: f.wait, OtherWait: f.otherWait, Measured: f.measured})
	}
	if c := w.instead; c != nil {
		list = append(list, Comparison{Waypoint: c.waypoint, OtherGoodput: c.is})
	}
	return list
}

// standing returns why a kind of detour of a waypoint was not chosen.
func (r *round) standing(waypoint string, k Kind) (is uint8, rest Rest) {
	for i := range r.InUse {
		if r.InUse[i].Waypoint == waypoint && r.InUse[i].Kind == k {
			return inUse, rest
		}
	}
	for i := range r.open {
		if r.open[i].Waypoint == waypoint && r.open[i].Kind == k {
			return inUse, rest
		}
	}
	for i := range r.Resting {
		if r.Resting[i].Waypoint == waypoint && r.Resting[i].Kind == k {
			return resting, r.Resting[i].Rest
		}
	}
	return notOffered, rest
}

// of returns the reason as text for the chosen detour.
func (w Reason) of(d *Detour) string {
	switch d.Kind {
	case Uplink:
		return "another uplink of this host"
	case Port:
		if isPath(d.Kind, d.Waypoint) {
			return "another path by its ports"
		}
		return "another port on the same path"
	default:
	}
	var parts []string
	plain := true // whether no preferred kind needs a mention
	for i, b := range w.better[:w.n] {
		var words string
		switch {
		case b.is == resting:
			words = w.rests[i].of(b.kind)
		case b.is == inUse:
			words = fmt.Sprintf("%v through %s carries it already", b.kind, d.Waypoint)
		case b.kind == InBand && (d.Server.Addr().Is6() || d.Local.Is6()):
			words = "in-band leads to IPv4 servers only"
		case b.kind == Mapped:
			words = "no mapping was at hand"
		default:
			words = notOfferedWords(b.kind)
		}
		plain = plain && words == notOfferedWords(b.kind)
		parts = append(parts, words)
	}
	if plain {
		parts = []string{fmt.Sprintf("%v comes first of what %s offers", d.Kind, d.Waypoint)}
	}
	if w.wanted {
		parts = append(parts, "you want "+d.Waypoint+" to be taken first (dcol use)")
	}
	switch {
	case w.carrying != "" && w.fresh:
		parts = append(parts, fmt.Sprintf("%s carries nothing of this connection yet; %s already does", d.Waypoint, w.carrying))
	case w.carrying != "":
		parts = append(parts, fmt.Sprintf("%s carries less of this connection than %s", d.Waypoint, w.carrying))
	}
	if w.failing != "" {
		parts = append(parts, fmt.Sprintf("detours of %s to this server failed lately", w.failing))
	}
	if g := w.gives; g != nil {
		parts = append(parts, fmt.Sprintf("bulk traffic got %s through %s, %s through %s", inMbit(g.goodput), d.Waypoint, inMbit(g.otherGoodput), g.other))
	}
	if c := w.faster; c != nil {
		how := "expected"
		if c.measured {
			how = "measured"
		}
		parts = append(parts, fmt.Sprintf("messages through %s take %v, through %s %v (%s)", d.Waypoint, inMS(c.wait), c.other, inMS(c.otherWait), how))
	}
	if c := w.instead; c != nil {
		parts = append(parts, fmt.Sprintf("in place of %s, which fell from %s to %s", c.waypoint, inMbit(c.was), inMbit(c.is)))
	}
	if w.tried != nil {
		parts = append(parts, w.tried.Words())
	}
	if w.silent {
		parts = append(parts, "nothing arrived through it lately, but there is no other")
	}
	if w.explored {
		parts = append(parts, fmt.Sprintf("to be measured: %s was not yet towards this network", d.Waypoint))
	}
	return strings.Join(parts, "; ")
}

// change returns in words what would change the choice of a detour.
func (w *Reason) change(d *Detour) string {
	switch {
	case d.Kind.own():
		return "it is left if it fails"
	case w.wanted:
		return "dcol use --reset compares it with the others"
	case w.explored:
		return "once measured, it is compared with the others"
	case w.gives != nil:
		return fmt.Sprintf("at less than %s, %s comes first", inMbit(w.gives.otherGoodput), w.gives.other)
	case w.faster != nil:
		return fmt.Sprintf("at more than %v, %s comes first", inMS(w.faster.otherWait), w.faster.other)
	case !w.shunned.IsZero():
		return "any other detour comes first"
	case w.failing != "":
		return fmt.Sprintf("%s is compared with it again when its failures are forgotten", w.failing)
	default:
		return "others come first if it fails or loses packets, or if its waypoint is loaded"
	}
}

// Verdict is the reason why a subflow is set aside: its numbers, beside those of the subflow that carries instead.
type Verdict struct {
	// Waypoint is the waypoint of the other subflow. It is empty for the direct path.
	Waypoint string
	// Loss and OtherLoss are shares of packets lost. They are zero if something else decided.
	Loss, OtherLoss float64
	// Wait and OtherWait estimate how long a message waits for its answer, with losses counted as when a carrier is chosen.
	Wait, OtherWait time.Duration
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

// of returns the reason as text for a subflow.
func (a *aside) of() string {
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
		return fmt.Sprintf("stands by, because this host's own line is the bottleneck: bulk traffic got %s without it, %s with it", inMbit(a.why.Without), inMbit(a.why.With))
	case a.cause == addedNothing:
		return fmt.Sprintf("stands by: bulk traffic lately got %s without it, %s with it", inMbit(a.why.Without), inMbit(a.why.With))
	case a.cause == addsNothing:
		return fmt.Sprintf("stands by: bulk traffic got %s without it, %s with it", inMbit(a.why.Without), inMbit(a.why.With))
	case a.cause == spent:
		return "stands by: this month's budget of bytes through it is used up"
	case a.cause == standsBy && a.why.OtherWait == 0:
		return "stands by: messages are likely on this connection, and begin on the direct path"
	case a.cause == standsBy && isQuicker(a.why.Wait, a.why.OtherWait):
		return fmt.Sprintf("stands by: messages take %s over it, %s over %s; it carries them soon if that lasts", take, otherTakes, other)
	case a.cause == standsBy && a.why.Wait < a.why.OtherWait:
		return fmt.Sprintf("stands by: messages take %s over it, hardly less than the %s over %s", take, otherTakes, other)
	case a.cause == surplus:
		return "ends as soon as its data has arrived: the configuration allows fewer subflows now"
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
		return inMS(wait).String()
	}
	return fmt.Sprintf("%v (%.1f %% lost)", inMS(wait), 100*loss)
}

// inMS rounds a time for display.
func inMS(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// inMbit renders a rate in bits a second for display.
func inMbit(rate float64) string { return fmt.Sprintf("%.1f Mbit/s", rate/1e6) }

// Words returns the result as text.
func (r *Tryout) Words() string {
	switch r.Verdict {
	case TryoutKept:
		return fmt.Sprintf("took the place of %s and stays: %s with it, %s before", r.Instead, inMbit(r.Sum), inMbit(r.Before))
	case TryoutLost:
		return fmt.Sprintf("took the place of %s for a while: %s with it, %s before; it stays only with %.0f %% more", r.Instead, inMbit(r.Sum), inMbit(r.Before), 100*(tryoutGain-1))
	case TryoutDisturbed:
		return fmt.Sprintf("took the place of %s, without a result: something else changed, or it was not reached", r.Instead)
	default:
		return fmt.Sprintf("carried %s while it was tried", inMbit(r.Goodput))
	}
}
