package path

import (
	"fmt"
	"strings"
	"time"
)

// Rest is why a detour is left alone for now.
type Rest struct {
	Cause RestCause
	Since time.Time // when it began, of RestsBlocked and RestsBlamed
	Err   error     // the last failure, of RestsFailed, RestsBlocked and RestsBlamed; nil: an orderly end
}

// RestCause tells the reasons apart.
type RestCause uint8

const (
	// RestsFailed: a subflow over it to this server failed lately.
	RestsFailed RestCause = iota
	// RestsBlocked: the path lets none of its SYNs through.
	RestsBlocked
	// RestsTried: other connections are finding out whether the path does.
	RestsTried
	// RestsUnready: this host cannot take it now.
	RestsUnready
	// RestsBlamed: data that came by it was changed, or nothing came, see Blame.
	RestsBlamed
	// RestsNoAddress: the address its subflows start from is not there.
	RestsNoAddress
)

// of says it of a kind.
func (r Rest) of(k Kind) string {
	switch r.Cause {
	case RestsBlocked:
		return fmt.Sprintf("%v does not get through on this path since %s (%s)", k, r.Since.Format("15:04"), failureWords(r.Err))
	case RestsBlamed:
		return fmt.Sprintf("%v through this waypoint is not used since %s: %s", k, r.Since.Format("15:04"), failureWords(r.Err))
	case RestsTried:
		return fmt.Sprintf("%v is being tried by other connections", k)
	case RestsUnready:
		return fmt.Sprintf("%v is not ready: %s", k, failureWords(r.Err))
	case RestsNoAddress:
		return fmt.Sprintf("%v has no address on this host", k)
	default:
		return fmt.Sprintf("%v rests after a failure: %s", k, failureWords(r.Err))
	}
}

func notOfferedWords(k Kind) string { return fmt.Sprintf("%v is not offered", k) }

func failureWords(err error) string {
	if err == nil {
		return "closed by the other end"
	}
	return err.Error()
}

// Reason is why a detour was chosen: how the ways of its waypoint stood that
// are preferred to it, and which waypoint was passed over as it carries more of
// the connection. It is kept for each subflow, so it is small; words are made
// of it for people only.
type Reason struct {
	better   [nKinds - 1]standing // the first n, in the operator's order
	n        uint8
	rests    *[nKinds - 1]Rest // of those that rest; nil: none does
	carrying string            // another waypoint; empty: none was passed over
	fresh    bool              // its own waypoint carried nothing of the connection
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

// reason says why best is next.
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
	for i := range r.Usable {
		u := &r.Usable[i]
		if u.Waypoint != best.Waypoint && r.allowed(u) && r.preferred(u, best) < 0 {
			why.carrying, why.fresh = u.Waypoint, r.carried(best.Waypoint) == 0
			break
		}
	}
	return why
}

// standing says how a kind of a waypoint stands that was not chosen.
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

// of says it of the detour it led to.
func (w Reason) of(d *Detour) string {
	var parts []string
	plain := true // all there is to say is what its waypoint offers
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
	switch {
	case w.carrying != "" && w.fresh:
		parts = append(parts, fmt.Sprintf("%s carries nothing of this connection yet; %s already does", d.Waypoint, w.carrying))
	case w.carrying != "":
		parts = append(parts, fmt.Sprintf("%s carries less of this connection than %s", d.Waypoint, w.carrying))
	}
	return strings.Join(parts, "; ")
}
