package coordinator

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/enrol"
)

// How much members may be made to send to addresses of which nobody knows yet whose they are.
const (
	maxClaims   = 8 // addresses that are being tried at a time, of one member each
	claimBurst  = 8 // of one member: so many at once, then one each
	claimEvery  = time.Minute
	claimWithin = 4 * time.Second
	witnesses   = 2
)

// claims decides whether an address in a member's record is that member's. Nobody but the member can complete a
// session's handshake there, so it is, if the coordinator's own host does; or, where that one does not get there,
// if two other members do, who are chosen by chance, and none does not. What was shown counts until the
// coordinator's next start. It does no I/O.
type claims struct {
	self   string // the coordinator's own host
	random func(n int) int

	mu    sync.Mutex
	shown map[string]map[netip.Addr]bool // by member
	open  map[string]*claim              // by member
	spent *allowances
}

// claim is a record's addresses that are to be tried.
type claim struct {
	record    []byte // as the member signed it: those who try believe nobody else
	port      uint16
	addresses []netip.Addr // the first is being tried
	id        string       // of that; empty: it has not begun
	asked     map[string]bool
	yes, no   int
	others    bool // the coordinator's own host did not get there
	ends      time.Time
}

func newClaims(self string, random func(n int) int) *claims {
	return &claims{
		self: self, random: random, shown: map[string]map[netip.Addr]bool{}, open: map[string]*claim{},
		spent: newAllowances(claimBurst, claimEvery),
	}
}

// has says whether an address was shown to be a member's.
func (c *claims) has(name string, at netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown[name][at]
}

// pending says whether something of a member is being tried.
func (c *claims) pending(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[name] != nil
}

// some says whether anything is being tried.
func (c *claims) some() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) > 0
}

// try has addresses tried, as soon and as far as the member may want that.
func (c *claims) try(name string, record []byte, addresses []netip.Addr, port uint16, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[name] != nil || len(c.open) >= maxClaims {
		return // the member says it again
	}
	var some []netip.Addr
	for _, a := range addresses {
		if c.spent.may(name, now) {
			c.spent.spend(name, now)
			some = append(some, a)
		}
	}
	if len(some) > 0 {
		c.open[name] = &claim{record: record, port: port, addresses: some}
	}
}

// next is what is to be asked now, of these members, who can be asked.
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

// choose picks who is to try.
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

// answered takes what a member found, if it was asked, once.
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

// close ends what nobody answers.
func (c *claims) close(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, claim := range c.open {
		if claim.id != "" && !now.Before(claim.ends) {
			c.judge(name, claim)
		}
	}
}

func (c *claims) judge(name string, claim *claim) {
	is := claim.yes > 0 && claim.no == 0
	claim.id, claim.yes, claim.no = "", 0, 0
	switch {
	case is:
		c.show(name, claim.addresses[0])
		c.advance(name, claim)
	case claim.others:
		c.advance(name, claim)
	default:
		claim.others = true
	}
}

// advance goes on with the next address.
func (c *claims) advance(name string, claim *claim) {
	claim.others, claim.addresses = false, claim.addresses[1:]
	if len(claim.addresses) == 0 {
		delete(c.open, name)
	}
}

// maxShown is more than a record holds.
const maxShown = 16

func (c *claims) show(name string, at netip.Addr) {
	if len(c.shown[name]) >= maxShown {
		delete(c.shown, name)
	}
	if c.shown[name] == nil {
		c.shown[name] = map[netip.Addr]bool{}
	}
	c.shown[name][at] = true
}

// keep forgets those that are members no more.
func (c *claims) keep(is func(name string) bool, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.shown, func(name string, _ map[netip.Addr]bool) bool { return !is(name) })
	c.spent.sweep(now)
}
