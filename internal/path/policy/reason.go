package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/path/words"
)

func notOfferedWords(k Kind) string { return fmt.Sprintf("%v is not offered", k) }

// Reason is why a policy chose a detour. Words returns it as text, which is needed only for display.
type Reason struct {
	Explored bool      // it was not measured, and it was taken to measure it
	Silent   bool      // nothing arrived through it lately, and it was taken because there was no other
	Shunned  time.Time // the time until which its waypoint is avoided because of loss; zero: it is not
	Loss     float64   // what it lost then

	better   [nKinds - 1]standing // preferred kinds of the same waypoint that were not chosen: the first n, in the operator's order
	n        uint8
	rests    *[nKinds - 1]Rest // reasons of the resting ones among better; nil: none rests
	carrying string            // another waypoint, passed over because it carries more of the connection; empty: none
	wanted   bool              // the operator wants its waypoint to be taken before others
	fresh    bool              // the connection had no subflow through its waypoint
	failing  string            // another waypoint, passed over because its detours failed; empty: none
	drawn    string            // another waypoint, which is about as good, so that a random number decided; empty: none
	faster   *Comparison       // with the next best waypoint, by wait; nil: none
	gives    *Comparison       // with the next best waypoint, by goodput; nil: none
}

// Equals reports whether two reasons have the same text.
func (w *Reason) Equals(v *Reason) bool {
	a, b := *w, *v
	for _, r := range [...]*Reason{&a, &b} {
		r.faster, r.gives = nil, nil
	}
	return a == b && same(w.faster, v.faster) && same(w.gives, v.gives)
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// standing is a kind of detour of the chosen waypoint that was not chosen, and why: notOffered, inUse, resting or unheard.
type standing struct {
	kind Kind
	is   uint8
}

const (
	notOffered uint8 = iota
	inUse
	resting
	unheard // not offered, because the waypoint's session is down
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
		if is == notOffered && best.Unheard {
			is = unheard
		}
		why.better[why.n] = standing{k, is}
		why.n++
	}
	why.Shunned, why.Loss, why.wanted, why.Explored, why.Silent = best.Shunned, best.Loss, best.Wanted, r.tries(best), best.LastResort
	why.faster, why.gives, why.drawn = r.faster(best), r.gives(best), r.drawn(best)
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

// faster compares best with the next waypoint by wait, if messages wait clearly longer there. The wait decides only among
// waypoints of about the same goodput.
func (r *round) faster(best *Usable) (c *Comparison) {
	if best.Wait == 0 {
		return nil
	}
	for i := range r.Usable {
		u := &r.Usable[i]
		if u.Waypoint != best.Waypoint && r.allowed(u) && u.Wait > 0 && u.goodputClass() == best.goodputClass() && best.waitClass() < u.waitClass() && (c == nil || u.Wait < c.OtherWait) {
			c = &Comparison{Waypoint: u.Waypoint, Wait: best.Wait, OtherWait: u.Wait, Measured: best.Measured && u.Measured}
		}
	}
	return c
}

// gives compares best with the next waypoint by goodput, if one more bulk connection may expect clearly less there.
func (r *round) gives(best *Usable) (c *Comparison) {
	if !best.Gave {
		return nil
	}
	for i := range r.Usable {
		u := &r.Usable[i]
		if u.Waypoint != best.Waypoint && r.allowed(u) && u.Gave && u.Goodput > 0 && u.goodputClass() < best.goodputClass() && (c == nil || u.Goodput > c.OtherGoodput) {
			c = &Comparison{Waypoint: u.Waypoint, Goodput: best.Goodput, OtherGoodput: u.Goodput}
		}
	}
	return c
}

// drawn returns the next waypoint that was measured to be as good as best, or "".
func (r *round) drawn(best *Usable) (waypoint string) {
	var next *Usable
	for i := range r.Usable {
		u := &r.Usable[i]
		if u.Waypoint != best.Waypoint && r.allowed(u) && (best.Gave && u.Gave || best.Measured && u.Measured) && cmp.Or(r.byUse(u, best), r.byWorth(u, best)) == 0 && (next == nil || r.compare(u, next) < 0) {
			next = u
		}
	}
	if next == nil {
		return ""
	}
	return next.Waypoint
}

// Compared returns the comparisons with other waypoints that decided.
func (w *Reason) Compared() (list []Comparison) {
	for _, c := range []*Comparison{w.gives, w.faster} {
		if c != nil {
			list = append(list, *c)
		}
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

// Words returns the reason as text for the chosen detour.
func (w *Reason) Words(d *Detour) string {
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
		var says string
		switch {
		case b.is == resting:
			says = w.rests[i].Words(b.kind)
		case b.is == inUse:
			says = fmt.Sprintf("%v through %s carries it already", b.kind, d.Waypoint)
		case b.is == unheard:
			says = fmt.Sprintf("the session with %s is down, so it offers no other kind", d.Waypoint)
		case b.kind == InBand && (d.Server.Addr().Is6() || d.Local.Is6()):
			says = "in-band leads to IPv4 servers only"
		case b.kind == Mapped:
			says = "no mapping was at hand"
		default:
			says = notOfferedWords(b.kind)
		}
		plain = plain && says == notOfferedWords(b.kind)
		if !slices.Contains(parts, says) {
			parts = append(parts, says)
		}
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
		parts = append(parts, fmt.Sprintf("one more bulk connection may expect %s of %s, %s of %s", words.Mbit(g.Goodput), d.Waypoint, words.Mbit(g.OtherGoodput), g.Waypoint))
	}
	if c := w.faster; c != nil {
		how := "expected"
		if c.Measured {
			how = "measured"
		}
		parts = append(parts, fmt.Sprintf("messages through %s take %s, through %s %s (%s)", d.Waypoint, words.MS(c.Wait), c.Waypoint, words.MS(c.OtherWait), how))
	}
	if w.drawn != "" {
		parts = append(parts, fmt.Sprintf("%s is about as good, and %s was drawn by lot", w.drawn, d.Waypoint))
	}
	if w.Silent {
		parts = append(parts, "nothing arrived through it lately, but there is no other")
	}
	if w.Explored {
		parts = append(parts, fmt.Sprintf("%s is tried, because it was never measured towards this network", d.Waypoint))
	}
	return strings.Join(parts, "; ")
}

// Change returns in words what would change the choice of a detour.
func (w *Reason) Change(d *Detour) string {
	switch {
	case d.Kind.Own():
		return "it is left if it fails"
	case w.wanted:
		return "dcol use --reset compares it with the others"
	case w.Explored:
		return "once measured, it is compared with the others"
	case w.drawn != "":
		return fmt.Sprintf("another connection may draw %s", w.drawn)
	case w.faster != nil:
		return fmt.Sprintf("at more than %s, %s comes first", words.MS(w.faster.OtherWait), w.faster.Waypoint)
	case w.gives != nil:
		return fmt.Sprintf("at less than %s, %s comes first", words.Mbit(w.gives.OtherGoodput), w.gives.Waypoint)
	case !w.Shunned.IsZero():
		return "any other detour comes first"
	case w.failing != "":
		return fmt.Sprintf("%s is compared with it again when its failures are forgotten", w.failing)
	default:
		return "others come first if it fails or loses packets, or if its waypoint is loaded"
	}
}
