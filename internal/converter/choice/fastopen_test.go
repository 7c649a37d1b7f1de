package choice

import (
	"net/netip"
	"testing"
	"time"
)

// A path is tried by one connection at a time, used by all once that has worked, and left alone after a failure, for an
// hour and then for longer.
func TestFastOpen(t *testing.T) {
	now := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	conv, server := netip.MustParseAddrPort("192.0.2.1:5124"), netip.MustParseAddrPort("203.0.113.1:443")
	from, other := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("198.51.100.7")
	fresh := func() *Choice {
		c := New(Policy{Mode: Always, FastOpen: true})
		c.SetConverters([]netip.AddrPort{conv})
		return c
	}
	try := func(c *Choice, want bool, what string) {
		t.Helper()
		if may := c.MayFastOpen(from, conv, server, now); may != want {
			t.Errorf("%s: may %v, want %v", what, may, want)
		}
		if tries := c.TryFastOpen(from, conv, server, now); tries != want {
			t.Errorf("%s: %v, want %v", what, tries, want)
		}
	}
	pass := func(d time.Duration) { now = now.Add(d) }

	c := New(Policy{Mode: Always})
	c.SetConverters([]netip.AddrPort{conv})
	try(c, false, "without the policy")

	c = fresh()
	try(c, true, "the first")
	try(c, false, "during the trial")
	if !c.TryFastOpen(other, conv, server, now) {
		t.Error("from another address")
	}
	pass(trialFor)
	try(c, true, "after a trial that never ended")
	c.FastOpened(from, conv, FastOpenUnknown, now)
	try(c, true, "after one that asked for a cookie")
	c.FastOpened(from, conv, FastOpenWorked, now)
	try(c, true, "once proven")
	try(c, true, "once proven, at the same time")
	c.FastOpened(from, conv, FastOpenSilent, now)
	try(c, true, "after a proven path's silence")
	try(c, false, "the trial after that")
	c.FastOpened(from, conv, FastOpenSilent, now)
	try(c, false, "after the second silence")

	c = fresh()
	for _, hours := range []int{1, 2, 4, 8, 16, 24, 24} {
		try(c, true, "before a failure")
		c.FastOpened(from, conv, FastOpenFailed, now)
		c.FastOpened(from, conv, FastOpenFailed, now) // had begun before
		pass(time.Duration(hours)*time.Hour - time.Second)
		try(c, false, "after a failure")
		pass(time.Second)
	}
	try(c, true, "after the last failure")
	c.FastOpened(from, conv, FastOpenWorked, now)
	c.FastOpened(from, conv, FastOpenFailed, now)
	pass(time.Hour)
	try(c, true, "an hour after a failure of a path that had worked")
}

// Of several converters, one is used without until the time to the server is known: the answer would not show it.
func TestFastOpenMeasuresFirst(t *testing.T) {
	now := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	near, far := netip.MustParseAddrPort("192.0.2.1:5124"), netip.MustParseAddrPort("192.0.2.2:5124")
	server := netip.MustParseAddrPort("203.0.113.1:443")
	from := netip.MustParseAddr("192.0.2.7")
	c := New(Policy{Mode: Always, FastOpen: true})
	c.SetConverters([]netip.AddrPort{near, far})
	if c.TryFastOpen(from, near, server, now) {
		t.Error("before the time to the server is known")
	}
	c.Carried(near, server, 10*time.Millisecond, 30*time.Millisecond, now)
	if !c.TryFastOpen(from, near, server, now) {
		t.Error("not once it is known")
	}
	c.Carried(near, server, 10*time.Millisecond, 0, now) // with the message in the SYN
	if got, _ := c.times.Get(way{near, server.Addr()}, now); got != 30*time.Millisecond {
		t.Errorf("%v is known then", got)
	}
}
