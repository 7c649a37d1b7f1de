package claim

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// Most bounds the claims of one member.
	Most = 8
	// mostMembers bounds the members whose claims are kept, and mostVerdicts the verdicts about each.
	mostMembers  = 256
	mostVerdicts = 32
	// Lasts is how long a claim counts.
	Lasts = 24 * time.Hour
	// A member is believed more than others once its claims about so many waypoints agreed with what this host measured.
	// One that disagreed is not believed for disbelievedFor.
	provenBy       = 2
	disbelievedFor = 7 * 24 * time.Hour
)

// Heard has the claims of one member, signed by it at that time.
type Heard struct {
	Member string
	At     time.Time
	Claims []Claim
}

// Book has other members' claims, and what this host's own measurements said about them. It is not safe for concurrent
// use.
type Book struct {
	members map[string]*member
}

// member is what is known of one member.
type member struct {
	at       time.Time
	claims   []Claim
	verdicts map[string]verdict // by waypoint
}

// verdict is the result of comparing a claim with an own measurement.
type verdict struct {
	agreed bool
	at     time.Time
}

// NewBook returns an empty book.
func NewBook() *Book { return &Book{members: make(map[string]*member)} }

// Hear replaces all claims. A member has one opinion of each waypoint, and none of itself. If there are claims of more
// members than are kept, those count whose claims could be compared, then the newest. Verdicts about members stay while
// they last, so that nobody is rid of them by being silent for a while; only when there is no more room, those who are silent
// give way to others.
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

// valid returns the claims that may count.
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

// standing returns on how many waypoints a member agreed with this host, and whether it disagreed on any.
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

// forget drops verdicts that do not last any more.
func (b *Book) forget(now time.Time) {
	for _, m := range b.members {
		maps.DeleteFunc(m.verdicts, func(_ string, v verdict) bool { return now.Sub(v.at) > disbelievedFor })
	}
}

// Hint is what members measured of a waypoint, as far as they are believed. It is zero if nobody did.
type Hint struct {
	Claim
	// Members is the number of those that were believed, and Wrong of those that were not. Proven is set if claims of those
	// who were believed agreed with what this host measured elsewhere.
	Members, Wrong int
	Proven         bool
}

// Hint returns the median of what is claimed of a waypoint. Members whose claims disagreed with this host's measurements
// do not count. Where there is one whose claims were proven true, only such count.
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

// unmeasured are the classes between which a waypoint of which nothing is claimed comes.
const (
	unmeasuredLoss    = 2
	unmeasuredGoodput = 3
)

// Rank orders waypoints to be tried, the lowest first: for bulk traffic by the goodput, then by the loss; else by the loss.
func (h Hint) Rank(bulk bool) int {
	loss, goodput := int(cmp.Or(h.Loss, unmeasuredLoss)), int(cmp.Or(h.Goodput, unmeasuredGoodput))
	if !bulk {
		return loss
	}
	return loss - goodput*int(MostLoss+1)
}
