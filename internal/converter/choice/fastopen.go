package choice

import (
	"net/netip"
	"time"
)

// Some paths do not let a message in the SYN (TCP Fast Open) pass. There, a connection with such a message takes a
// second longer, and another attempt. So each path from an address of this host to a converter is first tried by one
// connection at a time. Others use it once that has worked. After a failure it is not used for a long time.

const (
	fastPathsMost = 1024
	// fastPathsFor is the time for which a path is remembered after its last connection, or after it may be tried again.
	fastPathsFor = 48 * time.Hour

	// trialFor is the time after which a trial counts as over, even if nobody reported its end.
	trialFor = 10 * time.Second

	fastBackoffLeast = time.Hour
	fastBackoffMost  = 24 * time.Hour
)

// FastOpen is the outcome of a connection that was to have its message in the SYN.
type FastOpen int

const (
	// FastOpenUnknown means that nothing was learned: the SYN only asked for a cookie, or the converter refused
	// the connection.
	FastOpenUnknown FastOpen = iota
	// FastOpenWorked means that the SYN's data was acknowledged, and the message was answered.
	FastOpenWorked
	// FastOpenSilent means that the SYN had data, and that nothing came or nothing further was acknowledged. The cause may
	// be the server, the converter, or something on the path that lost track of the connection or drops all its packets.
	FastOpenSilent
	// FastOpenFailed means that the SYN was lost or its data not acknowledged, or that the connection fell back to TCP.
	FastOpenFailed
)

// path is a path from an address of this host to a converter.
type path struct {
	from      netip.Addr
	converter netip.AddrPort
}

type fastPath struct {
	proven  bool
	trial   time.Time     // until then no other connection tries it
	backoff time.Duration // after the last failure; zero: none since it last worked
	until   time.Time     // until then it is not used
}

// WantsFastOpen reports whether messages are sent in SYNs where that works.
func (c *Choice) WantsFastOpen() bool { return c.policy.FastOpen }

// MayFastOpen reports whether a connection to a server, from an address to a converter, may have its message in the SYN.
func (c *Choice) MayFastOpen(from netip.Addr, converter, server netip.AddrPort, now time.Time) bool {
	if !c.policy.FastOpen {
		return false
	}
	// With the message in the SYN, the answer does not show how far the server is, and Choose has to know that.
	_, measured := c.times.Get(way{converter, server.Addr().Unmap()}, now)
	p := c.fastPath(from, converter, now)
	return (measured || len(c.converters) == 1) && !now.Before(p.until) && (p.proven || !now.Before(p.trial))
}

// MayFastOpenFor is like MayFastOpen, for a client whose reports hold for itself only. So it does not try paths.
func (c *Choice) MayFastOpenFor(who Who, from netip.Addr, converter, server netip.AddrPort, now time.Time) bool {
	_, slow := c.account(who, now).slow.Get(converter, now)
	return !slow && c.fastPath(from, converter, now).proven && c.MayFastOpen(from, converter, server, now)
}

// TryFastOpen is like MayFastOpen, for a connection that is made now. The caller must report its outcome to FastOpened.
// While the path is being tried, other connections do not use it.
func (c *Choice) TryFastOpen(from netip.Addr, converter, server netip.AddrPort, now time.Time) bool {
	if !c.MayFastOpen(from, converter, server, now) {
		return false
	}
	if p := c.fastPath(from, converter, now); !p.proven {
		p.trial = now.Add(trialFor)
		c.setFastPath(from, converter, p, now)
	}
	return true
}

// FastOpened notes the outcome of a connection for which TryFastOpen or MayFastOpen was true. After a failure, the path
// is not used for an hour. Each further failure doubles that, up to a day. Failures while it is not used are ignored,
// because these connections began before.
func (c *Choice) FastOpened(from netip.Addr, converter netip.AddrPort, how FastOpen, now time.Time) {
	p := c.fastPath(from, converter, now)
	if now.Before(p.until) || c.find(converter) == nil {
		return
	}
	p.trial = time.Time{}
	switch {
	case how == FastOpenUnknown:
	case how == FastOpenWorked:
		p = fastPath{proven: true}
	case how == FastOpenSilent && p.proven:
		p.proven = false // the next connection tries the path again
	default:
		p.proven = false
		p.backoff = min(max(2*p.backoff, fastBackoffLeast), fastBackoffMost)
		p.until = now.Add(p.backoff)
	}
	c.setFastPath(from, converter, p, now)
}

func (c *Choice) fastPath(from netip.Addr, converter netip.AddrPort, now time.Time) fastPath {
	p, _ := c.fast.Get(path{from.Unmap(), converter}, now)
	return p
}

func (c *Choice) setFastPath(from netip.Addr, converter netip.AddrPort, p fastPath, now time.Time) {
	c.fast.Set(path{from.Unmap(), converter}, p, now.Add(p.backoff+fastPathsFor))
}
