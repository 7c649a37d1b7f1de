package reach

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/enrol"
)

func parseAll(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// play runs claims until none is open, and returns the names of the members asked; answers gives a member's answer
// about an address.
func play(c *claims, members []string, answers func(from string, at netip.Addr) (reachable, says bool)) (asked []string) {
	now := begin
	for n := 0; c.some(); n++ {
		for _, o := range c.next(members, now, func() string { return fmt.Sprint(n) }) {
			for _, from := range o.to {
				asked = append(asked, from+" "+o.Addresses[0].String())
				if yes, says := answers(from, o.Addresses[0]); says {
					c.answered(from, enrol.Checked{ID: o.ID, Reachable: yes})
				}
				c.answered("mallory", enrol.Checked{ID: o.ID, Reachable: true}) // is not asked
			}
		}
		now = now.Add(claimWithin)
		c.close(now)
	}
	return asked
}

func TestClaims(t *testing.T) {
	const a, b = "192.0.2.1", "2001:db8::1"
	members := []string{"hub", "mallory", "m1", "m2"}
	for name, test := range map[string]struct {
		members []string
		answers func(from string, at netip.Addr) (reachable, says bool)
		shown   []string
		asked   int
	}{
		"the coordinator's host gets there": {members, func(from string, _ netip.Addr) (bool, bool) { return true, true }, []string{a, b}, 2},
		"nobody gets there":                 {members, func(string, netip.Addr) (bool, bool) { return false, true }, nil, 6},
		"nobody can tell":                   {members, func(string, netip.Addr) (bool, bool) { return false, false }, nil, 6},
		"only others get there": {members, func(from string, at netip.Addr) (bool, bool) {
			return from != "hub", true
		}, []string{a, b}, 6},
		"one of two says no": {members, func(from string, _ netip.Addr) (bool, bool) { return from == "m1", true }, nil, 6},
		"one of two cannot tell": {members, func(from string, _ netip.Addr) (bool, bool) {
			return from == "m1", from != "m2"
		}, []string{a, b}, 6},
		"one address is another's": {members, func(_ string, at netip.Addr) (bool, bool) { return at.String() == b, true }, []string{b}, 4},
		"nobody else is there":     {[]string{"mallory"}, func(string, netip.Addr) (bool, bool) { return true, true }, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClaims("hub", rand.IntN)
			c.try("mallory", nil, parseAll(a, b), 1, begin)
			asked := play(c, test.members, test.answers)
			var shown []string
			for _, at := range []string{a, b} {
				if c.has("mallory", netip.MustParseAddr(at)) {
					shown = append(shown, at)
				}
			}
			if diff := cmp.Diff(test.shown, shown); diff != "" || len(asked) != test.asked {
				t.Errorf("shown: %s\nasked %v", diff, asked)
			}
			if c.has("m1", netip.MustParseAddr(a)) {
				t.Error("what one has shown counts for another")
			}
		})
	}
}

// However often members change their claims, few addresses are tried.
func TestClaimsAreBounded(t *testing.T) {
	c := newClaims("hub", rand.IntN)
	no := func(string, netip.Addr) (bool, bool) { return false, true }
	tried := 0
	for i := range 200 {
		at := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		c.try("mallory", nil, []netip.Addr{at}, 1, begin.Add(time.Duration(i)*time.Second))
		tried += len(slices.Compact(play(c, []string{"hub"}, no)))
	}
	if most := claimBurst + 200/int(claimEvery.Seconds()) + 1; tried == 0 || tried > most {
		t.Errorf("%d addresses of one member were tried in 200 s: at most %d", tried, most)
	}
	for i := range 100 {
		c.try(fmt.Sprintf("m%02d", i), nil, parseAll("192.0.2.1"), 1, begin)
	}
	if n := len(c.open); n != maxClaims {
		t.Errorf("addresses of %d members are being tried at a time", n)
	}
	c.show("gone", netip.MustParseAddr("192.0.2.1"))
	c.keep(func(name string) bool { return name != "gone" })
	if len(c.shown) > 0 {
		t.Errorf("kept: %v", c.shown)
	}
}
