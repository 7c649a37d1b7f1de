package choice

import (
	"net/netip"
	"time"
)

// A message in the SYN (TCP Fast Open) does not pass every path, and where it does not, the connection costs a second and
// a second attempt. So each path, from an address of this host to a converter, is tried by one connection at a time, used
// once that has worked, and left alone for long after a failure.

const (
	fastPathsMost = 1024
	// A path is remembered for fastPathsFor after its last connection. If it is left alone, this time begins when that ends.
	fastPathsFor = 48 * time.Hour

	// trialFor bounds a trial that nobody reports the end of.
	trialFor = 10 * time.Second

	fastBackoffLeast = time.Hour
	fastBackoffMost  = 24 * time.Hour
)

// FastOpen describes how a connection went that was to have its message in the SYN.
type FastOpen int

const (
	// FastOpenUnknown means that nothing was learned: the SYN only asked for a cookie, or the converter refused the connection.
	FastOpenUnknown FastOpen = iota
	// FastOpenWorked means that the SYN's data was acknowledged, and the message was answered.
	FastOpenWorked
	// FastOpenSilent means that the SYN had data and nothing came, or nothing after that was acknowledged. The server or the
	// converter may be the cause, or something that lost track of the connection, or drops all of it.
	FastOpenSilent
	// FastOpenFailed means that the SYN was lost or its data not acknowledged, or that the connection fell back to TCP.
	FastOpenFailed
)

// path leads to a converter from an address of this host.
type path struct {
	from      netip.Addr
	converter netip.AddrPort
}

type fastPath struct {
	proven  bool
	trial   time.Time     // no other connection tries before
	backoff time.Duration // the last one; zero: there was none since it worked
	until   time.Time     // it is left alone
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

// TryFastOpen is like MayFastOpen, for a connection that is made now and whose end FastOpened is told. As long as nothing
// is known of the path, other connections do without.
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

// FastOpened notes how a connection went for which TryFastOpen or MayFastOpen was true. After a failure, the path is left
// alone for an hour, and for twice as long each further time, up to a day. Connections that failed while it is left alone
// had begun before, and count once.
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
		p.proven = false // the next one tries again
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
