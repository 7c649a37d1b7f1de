package choice

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// An exclusion by a name ends when the name is no longer excluded. Another name for the address goes on excluding it.
func TestExclusionEndsWithName(t *testing.T) {
	policy := func(domains ...string) Policy { return Policy{Mode: Always, ExcludeDomains: domains} }
	c := with(policy("example.org", "example.net"), near)
	addr := server.Addr()
	directly := func(when time.Time, want bool) {
		t.Helper()
		if got := c.Choose(Who{}, server, when) == nil; got != want {
			t.Errorf("after %v it goes directly: %v, want %v", when.Sub(start), got, want)
		}
		if _, got := c.Table(when).Networks[alone(addr)]; got != want {
			t.Errorf("after %v the table has the address: %v, want %v", when.Sub(start), got, want)
		}
	}
	c.Exclude(addr, "www.example.org", start.Add(time.Hour), start)
	c.Exclude(netip.AddrFrom16(addr.As16()), "example.net", start.Add(time.Minute), start)
	c.SetPolicy(policy("example.org", "example.net"))
	directly(start, true)
	want := []Excluded{{addr, "www.example.org", start.Add(time.Hour)}}
	if got, all := c.Excluded(10, start); all != 1 || cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})) != "" {
		t.Errorf("%d are excluded: %+v", all, got)
	}
	c.SetPolicy(policy("example.net"))
	directly(start, true)
	directly(start.Add(time.Minute), false) // the time of the other name is over
	c.SetPolicy(policy())
	directly(start, false)
	if got, all := c.Excluded(10, start); all != 0 || got != nil {
		t.Errorf("%d are excluded: %+v", all, got)
	}
}

// Many names for one address, as forged answers have them, fill no memory.
func TestExclusionsAreLimited(t *testing.T) {
	c := with(Policy{Mode: Always, ExcludeDomains: []string{"example.org"}}, near)
	for i := range 1000 {
		c.Exclude(server.Addr(), fmt.Sprintf("%d.example.org", i), start.Add(time.Hour), start)
	}
	if names, _ := c.excluded.Get(server.Addr(), start); len(names) > namesMost+1 {
		t.Errorf("there are %d names", len(names))
	}
	c.SetPolicy(Policy{Mode: Always})
	c.Exclude(server.Addr(), "", start.Add(2*time.Hour), start.Add(time.Hour))
	if names, _ := c.excluded.Get(server.Addr(), start.Add(time.Hour)); len(names) != 1 {
		t.Errorf("%v are left after their time", names)
	}
}
