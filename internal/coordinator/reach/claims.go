package reach

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/ratelimit"
)

// These bound the packets that members can be made to send to addresses that may belong to others.
const (
	// maxClaims bounds the claims that are tried at one time, each of another member.
	maxClaims = 8
	// claimBurst is the number of addresses that one member may claim at once, then one every claimEvery.
	claimBurst = 8
	claimEvery = time.Minute
	// claimWithin bounds the time to try an address.
	claimWithin = 4 * time.Second
	// witnesses is the number of members that try an address which the coordinator's host could not reach.
	witnesses = 2
)

// claims decides whether an address in a member's record is that member's own. Only the member can complete a
// session's handshake there, so the address is its own if the coordinator's host completes one. If that fails, two
// random members try: at least one must succeed, and none may fail. Results are kept until the coordinator
// restarts. claims does no I/O.
type claims struct {
	self   string // the coordinator's own host
	random func(n int) int

	mu     sync.Mutex
	shown  map[string]map[netip.Addr]bool // by member
	open   map[string]*claim              // by member
	limits *ratelimit.Limits
}

// claim is the part of a record that is tried.
type claim struct {
	record    []byte // as the member signed it, for the members that try
	port      uint16
	addresses []netip.Addr    // the first is being tried
	id        string          // of that try; empty: it has not begun
	asked     map[string]bool // members that have not answered
	yes, no   int
	others    bool // the coordinator's host has failed
	ends      time.Time
}

func newClaims(self string, random func(n int) int) *claims {
	return &claims{
		self: self, random: random, shown: map[string]map[netip.Addr]bool{}, open: map[string]*claim{},
		limits: ratelimit.New(claimBurst, claimEvery),
	}
}

// has reports whether an address is known to be a member's own.
func (c *claims) has(name string, at netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown[name][at]
}

// pending reports whether addresses of a member are being tried.
func (c *claims) pending(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[name] != nil
}

// some reports whether any address is being tried.
func (c *claims) some() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) > 0
}

// try adds addresses to be tried, within the member's limit.
func (c *claims) try(name string, record []byte, addresses []netip.Addr, port uint16, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[name] != nil || len(c.open) >= maxClaims {
		return // the member sends its record again
	}
	var some []netip.Addr
	for _, a := range addresses {
		if c.limits.Take(name, now) == 0 {
			some = append(some, a)
		}
	}
	if len(some) > 0 {
		c.open[name] = &claim{record: record, port: port, addresses: some}
	}
}

// next returns the checks to request now, each with the members to ask for it.
func (c *claims) next(members []string, now time.Time, newID func() string) (out []order) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.open)) {
		claim := c.open[name]
		if claim.id != "" {
			continue
		}
		to := c.choose(name, claim, members)
		if len(to) == 0 {
			c.advance(name, claim)
			continue
		}
		claim.id, claim.ends, claim.asked = newID(), now.Add(claimWithin), map[string]bool{}
		for _, m := range to {
			claim.asked[m] = true
		}
		out = append(out, order{enrol.Check{
			ID: claim.id, Name: name, Addresses: claim.addresses[:1], Port: claim.port, Within: int(claimWithin / time.Second), Record: claim.record,
		}, to})
	}
	return out
}

// choose picks the members that try.
func (c *claims) choose(name string, claim *claim, members []string) (out []string) {
	if !claim.others && slices.Contains(members, c.self) {
		return []string{c.self}
	}
	claim.others = true
	rest := slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m == name || m == c.self })
	for len(rest) > 0 && len(out) < witnesses {
		i := c.random(len(rest))
		out = append(out, rest[i])
		rest = slices.Delete(rest, i, i+1)
	}
	return out
}

// answered takes a member's answer, once, if the member was asked.
func (c *claims) answered(from string, checked enrol.Checked) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, claim := range c.open {
		if claim.id == "" || claim.id != checked.ID || !claim.asked[from] {
			continue
		}
		delete(claim.asked, from)
		if checked.Reachable {
			claim.yes++
		} else {
			claim.no++
		}
		if len(claim.asked) == 0 {
			c.judge(name, claim)
		}
	}
}

// close ends tries that have taken too long.
func (c *claims) close(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, claim := range c.open {
		if claim.id != "" && !now.Before(claim.ends) {
			c.judge(name, claim)
		}
	}
}

// judge evaluates a try that has ended.
func (c *claims) judge(name string, claim *claim) {
	own := claim.yes > 0 && claim.no == 0
	claim.id, claim.yes, claim.no = "", 0, 0
	switch {
	case own:
		c.add(name, claim.addresses[0])
		c.advance(name, claim)
	case claim.others:
		c.advance(name, claim)
	default:
		claim.others = true
	}
}

// advance turns to the claim's next address.
func (c *claims) advance(name string, claim *claim) {
	claim.others, claim.addresses = false, claim.addresses[1:]
	if len(claim.addresses) == 0 {
		delete(c.open, name)
	}
}

// maxShown is more addresses than a record holds.
const maxShown = 16

// show records that an address is a member's own.
func (c *claims) show(name string, at netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(name, at)
}

func (c *claims) add(name string, at netip.Addr) {
	if len(c.shown[name]) >= maxShown {
		delete(c.shown, name)
	}
	if c.shown[name] == nil {
		c.shown[name] = map[netip.Addr]bool{}
	}
	c.shown[name][at] = true
}

// keep forgets hosts that are not members.
func (c *claims) keep(isMember func(name string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.shown, func(name string, _ map[netip.Addr]bool) bool { return !isMember(name) })
}
