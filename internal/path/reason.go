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

// Reason is why a detour was chosen: the state of the preferred detours of its waypoint, and a
// waypoint that was passed over because it carries more of the connection or failed. It is kept for each
// subflow, so it is small. Text is made from it only for display.
type Reason struct {
	better   [nKinds - 1]standing // the first n, in the operator's order
	n        uint8
	rests    *[nKinds - 1]Rest // for those that rest; nil: none does
	carrying string            // another waypoint; empty: none was passed over
	wanted   bool              // the operator wants its waypoint to be taken before others
	explored bool              // it was not measured, and the connection explores
	fresh    bool              // its own waypoint carried nothing of the connection
	failing  string            // another waypoint, passed over because its detours failed; empty: none
	shunned  time.Time         // it lost too much, and is avoided until then; zero: it did not
	loss     float64           // and so much
	faster   *comparison       // with the next best waypoint; nil: there was none to compare with
	gives    *gain             // likewise
	instead  *collapse         // it takes the place of this one; nil: of none that collapsed
	tried    *Tryout           // the connection tried it; nil: it did not
}

// gain is a reason for a detour: bulk traffic got more through its waypoint than through another, in bits a second.
type gain struct {
	goodput, otherGoodput float64
	other                 string
}

// comparison is a reason for a detour: messages wait less through its waypoint than through another.
type comparison struct {
	wait, otherWait time.Duration
	other           string
	measured        bool // else guessed by the sessions' round trips
}

// equals reports whether two reasons say the same.
func (w *Reason) equals(v *Reason) bool {
	a, b := *w, *v
	for _, r := range [...]*Reason{&a, &b} {
		r.faster, r.gives = nil, nil
	}
	return a == b && same(w.faster, v.faster) && same(w.gives, v.gives)
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// reasons has the last reasons that were given. Very many subflows have the same few, so they share them.
type reasons struct {
	last [8]*Reason
	next int
}

// shared returns a reason that equals w and is not to be changed.
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
	why.shunned, why.loss, why.wanted, why.explored = best.Shunned, best.Loss, best.Wanted, r.tries(best)
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

// faster compares best with the waypoint through which messages wait longer, but least of those.
func (r *round) faster(best *Usable) (c *comparison) {
	if best.Wait == 0 {
		return nil
	}
	for i := range r.Usable {
		u := &r.Usable[i]
		if u.Waypoint != best.Waypoint && r.allowed(u) && u.Wait > 0 && best.class() < u.class() && (c == nil || u.Wait < c.otherWait) {
			c = &comparison{best.Wait, u.Wait, u.Waypoint, best.Measured && u.Measured}
		}
	}
	return c
}

// gives compares best with the waypoint that gave bulk traffic less, but most of those.
func (r *round) gives(best *Usable) (g *gain) {
	if !best.Gave {
		return nil
	}
	for i := range r.Usable {
		u := &r.Usable[i]
		if u.Waypoint != best.Waypoint && r.allowed(u) && u.Gave && u.Goodput > 0 && classOf(u.Goodput) < classOf(best.Goodput) && (g == nil || u.Goodput > g.otherGoodput) {
			g = &gain{best.Goodput, u.Goodput, u.Waypoint}
		}
	}
	return g
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
	plain := true // no preferred kind needs a mention
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
	if w.explored {
		parts = append(parts, fmt.Sprintf("to be measured: %s was not yet towards this network", d.Waypoint))
	}
	return strings.Join(parts, "; ")
}

// Verdict is the reason for setting a subflow aside: the numbers that decided, beside those of the subflow that carries
// instead.
type Verdict struct {
	// Waypoint is the other's. It is empty for the direct path.
	Waypoint string
	// Loss and OtherLoss are shares of packets. They are zero if the wait decided.
	Loss, OtherLoss float64
	// Wait and OtherWait are about how long a message waits for its answer.
	Wait, OtherWait time.Duration
	// With and Without are what bulk traffic got with and without the subflow, in bits a second. They are zero if something else
	// decided, or if that is not known yet.
	With, Without float64
	// Line is set if this host's line seems to be the bottleneck.
	Line bool
}

// of returns the reason as text for a subflow.
func (a *aside) of() string {
	other := "the direct path"
	if a.why.Waypoint != "" {
		other = "the path through " + a.why.Waypoint
	}
	switch {
	case a.cause == yieldsPlace:
		return fmt.Sprintf("gives its place to %s", a.why.Waypoint)
	case a.cause == behindLine:
		return "stands by: this host's own line was the bottleneck lately, so it would add nothing"
	case a.cause == addsNothing && a.why.With == 0:
		return "stands by for a moment, to find out what the connection gets without it"
	case a.cause == addsNothing && a.why.Line:
		return fmt.Sprintf("stands by, because this host's own line is the bottleneck: bulk traffic got %s without it, %s with it", inMbit(a.why.Without), inMbit(a.why.With))
	case a.cause == addsNothing:
		return fmt.Sprintf("stands by: bulk traffic got %s without it, %s with it", inMbit(a.why.Without), inMbit(a.why.With))
	case a.cause == spent:
		return "stands by: this month's budget of bytes through it is used up"
	case a.cause == standsBy:
		return fmt.Sprintf("stands by: messages take %v over it, %v over %s", inMS(a.why.Wait), inMS(a.why.OtherWait), other)
	case a.times == 0:
		return fmt.Sprintf("stands by until %s: it lost %.1f %% of the packets lately", a.until.Format("15:04"), 100*a.why.Loss)
	default:
		return fmt.Sprintf("stands by until %s: it lost %.1f %% of the packets, %s %.1f %%", a.until.Format("15:04"), 100*a.why.Loss, other, 100*a.why.OtherLoss)
	}
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
