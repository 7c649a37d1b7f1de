package choice

import (
	"net/netip"
	"slices"
	"time"
)

// This file takes the outcomes of connections: whether servers speak MPTCP, and whether converters work.

// Learned notes whether a server speaks MPTCP, and when that was seen. A later finding counts more.
func (c *Choice) Learned(server netip.AddrPort, mptcp bool, at time.Time) {
	c.servers.Learn(unmapped(server), mptcp, at)
}

// Failed notes that a converter did not work. It is not used for five seconds. Each further time doubles that, up to
// five minutes. wants is the least time that the converter asked for. Failures while it is not used are ignored,
// because these connections began before.
func (c *Choice) Failed(addr netip.AddrPort, wants time.Duration, now time.Time) {
	v := c.find(addr)
	if v == nil || now.Before(v.until) {
		return
	}
	v.worked = time.Time{}
	v.backoff = longer(v.backoff)
	v.until = now.Add(max(v.backoff, min(wants, backoffMost)))
}

// Unreached notes that a server was reached neither through a converter nor directly. Connections to it go directly for
// a while.
func (c *Choice) Unreached(server netip.AddrPort, now time.Time) {
	c.unreached.Set(unmapped(server), struct{}{}, now.Add(UnreachedFor))
}

// Unserved notes that a converter was reached, but did not serve a connection to a server: it did not answer in time,
// or refused. It is not asked for this server for a while. Other servers are still reached through it, because the
// reason may concern this server only: a firewall, or ports that its connections have used up. Suspect finds out more.
func (c *Choice) Unserved(addr, server netip.AddrPort, now time.Time) {
	if v := c.find(addr); v != nil && !now.Before(v.until) {
		c.unserved.Set(way{addr, unmapped(server).Addr()}, struct{}{}, now.Add(unservedFor))
	}
}

// Refused notes that a converter was reached and refused to connect to a server. It is not asked for this server for a
// while, as after Unserved. If it refuses refusalsMost servers and connects to none in between, it has failed, even if
// it answers questions.
func (c *Choice) Refused(addr, server netip.AddrPort, now time.Time) {
	c.Unserved(addr, server, now)
	if v := c.find(addr); v != nil {
		c.count(v, server, now)
	}
}

// count adds a server to those that a converter refused one after the other. If there are refusalsMost, the converter has
// failed.
func (c *Choice) count(v *converter, server netip.AddrPort, now time.Time) {
	if !now.Before(v.until) && inARow(&v.refused, unmapped(server).Addr()) {
		c.Failed(v.addr, 0, now)
	}
}

// inARow adds a server to those that a converter did not serve one after the other. It reports whether the server is a
// new one and there are refusalsMost.
func inARow(servers *[]netip.Addr, server netip.Addr) bool {
	if slices.Contains(*servers, server) {
		return false
	}
	*servers = append(*servers, server)
	*servers = (*servers)[max(0, len(*servers)-refusalsMost):]
	return len(*servers) == refusalsMost
}

// longer returns the time for which a converter is not used, after it was not used for before.
func longer(before time.Duration) time.Duration {
	return min(max(2*before, backoffLeast), backoffMost)
}

// Aside describes a converter that is not used for a while.
type Aside struct {
	Until   time.Time `json:"until"`
	Refuses bool      `json:"refuses"` // it served no connection to several servers in a row; false: it failed in another way
}

// Aside returns the converters that are not used now for this host.
func (c *Choice) Aside(now time.Time) map[netip.AddrPort]Aside {
	aside := make(map[netip.AddrPort]Aside)
	for _, v := range c.converters {
		if now.Before(v.until) {
			aside[v.addr] = Aside{Until: v.until, Refuses: len(v.refused) == refusalsMost}
		}
		if s := c.own.silences[v.addr]; s != nil && s.until.After(now) && s.until.After(v.until) {
			aside[v.addr] = Aside{Until: s.until, Refuses: true}
		}
	}
	return aside
}

// Suspect reports whether a converter that did not serve a connection should be asked now whether it works. If so, the
// caller asks it and passes the answer to Checked.
func (c *Choice) Suspect(addr netip.AddrPort, now time.Time) bool {
	v := c.find(addr)
	if v == nil || now.Before(v.until) || !v.suspected.IsZero() && now.Sub(v.suspected) < suspectPause {
		return false
	}
	v.suspected = now
	return true
}

// Checked notes whether a suspected converter works. If it does not, it has failed, unless it connected to a
// server meanwhile.
func (c *Choice) Checked(addr netip.AddrPort, works bool, wants time.Duration, now time.Time) {
	if v := c.find(addr); v != nil && !works && !v.worked.After(v.suspected) {
		c.Failed(addr, wants, now)
	}
}

// Carried notes that a converter has connected to a server. rtt is the round-trip time to the converter, and total that
// to the server; zero: not measured.
func (c *Choice) Carried(addr, server netip.AddrPort, rtt, total time.Duration, now time.Time) {
	v := c.find(addr)
	if v == nil {
		return
	}
	v.rtt, v.backoff, v.until = rtt, 0, time.Time{}
	v.worked, v.trusted, v.refused = now, time.Time{}, nil
	if total > 0 {
		c.times.Set(way{addr, unmapped(server).Addr()}, total, now.Add(timesFor))
	}
}

// Trust reports whether a connection may send data through a converter before the converter has answered. If the
// converter then fails, the connection must end, because nobody knows whether the server got the data. So the converter
// must have worked a moment ago, and earlier connections that trusted it must not be waiting.
func (c *Choice) Trust(addr netip.AddrPort, now time.Time) bool {
	v := c.find(addr)
	if v == nil || v.worked.IsZero() || now.Sub(v.worked) >= trustFor ||
		!v.trusted.IsZero() && now.Sub(v.trusted) >= trustAnswers {
		return false
	}
	if v.trusted.IsZero() {
		v.trusted = now
	}
	return true
}
