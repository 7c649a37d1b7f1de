package claim

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// Most bounds the claims that one member may make.
	Most = 8
	// mostMembers bounds the members whose claims are kept.
	mostMembers = 256
	// mostVerdicts bounds the verdicts about each member.
	mostVerdicts = 32
	// Lasts is the time for which a claim counts.
	Lasts = 24 * time.Hour
	// provenBy is the number of waypoints on which a member must have agreed with this host to be believed before
	// others.
	provenBy = 2
	// disbelievedFor is the time for which a member is not believed after it disagreed. Verdicts last as long.
	disbelievedFor = 7 * 24 * time.Hour
)

// Heard has the claims that one member signed at the time At.
type Heard struct {
	Member string
	At     time.Time
	Claims []Claim
}

// Book holds other members' claims, and the verdicts of this host's measurements about them. It is not safe for
// concurrent use.
type Book struct {
	members map[string]*member
}

// member holds what is known of one member.
type member struct {
	at       time.Time
	claims   []Claim
	verdicts map[string]verdict // by waypoint
}

// verdict is the result of comparing a claim with this host's measurement.
type verdict struct {
	agreed bool
	at     time.Time
}

// NewBook returns an empty book.
func NewBook() *Book { return &Book{members: make(map[string]*member)} }

// Hear replaces all claims. A member's claims about itself are ignored, and only its first about each waypoint
// counts. If there are claims of too many members, members with verdicts come first, then those with the latest
// claims. Verdicts stay until they expire, so that no member escapes them by being silent for a while. Only when
// there is no room, silent members give way to others.
func (b *Book) Hear(all []Heard, now time.Time) {
	b.forget(now)
	for _, m := range b.members {
		m.claims = nil
	}
	all = slices.SortedFunc(slices.Values(all), func(x, y Heard) int {
		return cmp.Or(cmp.Compare(b.verdictsOf(y.Member), b.verdictsOf(x.Member)), y.At.Compare(x.At), cmp.Compare(x.Member, y.Member))
	})
	for _, h := range all {
		claims := h.valid(now)
		m := b.members[h.Member]
		if len(claims) == 0 || m == nil && !b.makeRoom() {
			continue
		}
		if m == nil {
			m = &member{verdicts: make(map[string]verdict)}
			b.members[h.Member] = m
		}
		if m.claims == nil || h.At.After(m.at) {
			m.at, m.claims = h.At, claims
		}
	}
	maps.DeleteFunc(b.members, func(_ string, m *member) bool { return len(m.claims) == 0 && len(m.verdicts) == 0 })
}

// valid returns those of h's claims that may count.
func (h Heard) valid(now time.Time) (claims []Claim) {
	if h.Member == "" || now.Sub(h.At) > Lasts || len(h.Claims) > Most {
		return nil
	}
	for _, c := range h.Claims {
		again := slices.ContainsFunc(claims, func(d Claim) bool { return d.Waypoint == c.Waypoint })
		if c = c.known(); c.Waypoint != h.Member && c.Waypoint != "" && !c.IsZero() && !again {
			claims = append(claims, c)
		}
	}
	return claims
}

func (m *member) of(waypoint string) (Claim, bool) {
	i := slices.IndexFunc(m.claims, func(c Claim) bool { return c.Waypoint == waypoint })
	if i < 0 {
		return Claim{}, false
	}
	return m.claims[i], true
}

// standing returns the number of waypoints on which the member agreed with this host, and whether it disagreed on
// any.
func (m *member) standing(now time.Time) (agreed int, wrong bool) {
	for _, v := range m.verdicts {
		switch {
		case now.Sub(v.at) > disbelievedFor:
		case v.agreed:
			agreed++
		default:
			wrong = true
		}
	}
	return agreed, wrong
}

func (b *Book) verdictsOf(name string) int {
	if m := b.members[name]; m != nil {
		return len(m.verdicts)
	}
	return 0
}

// forget drops expired verdicts.
func (b *Book) forget(now time.Time) {
	for _, m := range b.members {
		maps.DeleteFunc(m.verdicts, func(_ string, v verdict) bool { return now.Sub(v.at) > disbelievedFor })
	}
}

// Hint summarises what members measured of a waypoint. It is zero if no member did.
type Hint struct {
	Claim
	// Members is the number of members behind the claim, and Wrong the number that was not believed. Proven is set if
	// the claims of those members agreed with this host elsewhere.
	Members, Wrong int
	Proven         bool
}

// Hint returns the median of the claims about a waypoint. Members that disagreed with this host do not count. If
// there are proven members, only those count.
func (b *Book) Hint(waypoint string, now time.Time) (h Hint) {
	var losses, goodputs [2][]float64 // of strangers, of proven members
	var count [2]int
	for _, m := range b.members {
		c, ok := m.of(waypoint)
		if !ok || now.Sub(m.at) > Lasts {
			continue
		}
		agreed, wrong := m.standing(now)
		if wrong {
			h.Wrong++
			continue
		}
		proven := 0
		if agreed >= provenBy {
			proven = 1
		}
		count[proven]++
		if c.Loss != 0 {
			losses[proven] = append(losses[proven], float64(c.Loss))
		}
		if c.Goodput != 0 {
			goodputs[proven] = append(goodputs[proven], float64(c.Goodput))
		}
	}
	use := 0
	if count[1] > 0 {
		use, h.Proven = 1, true
	}
	h.Members = count[use]
	if h.Members+h.Wrong > 0 {
		h.Waypoint = waypoint
	}
	if x := losses[use]; len(x) > 0 {
		h.Loss = LossClass(median(x))
	}
	if x := goodputs[use]; len(x) > 0 {
		h.Goodput = GoodputClass(median(x))
	}
	return h
}

// A waypoint without claims ranks between these classes.
const (
	unmeasuredLoss    = 2
	unmeasuredGoodput = 3
)

// Rank orders waypoints to be tried out, the lowest first. For bulk traffic it orders by goodput, then by loss. For
// other traffic it orders by loss.
func (h Hint) Rank(bulk bool) int {
	loss, goodput := int(cmp.Or(h.Loss, unmeasuredLoss)), int(cmp.Or(h.Goodput, unmeasuredGoodput))
	if !bulk {
		return loss
	}
	return loss - goodput*int(MostLoss+1)
}
