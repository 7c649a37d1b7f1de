package client

import (
	"cmp"
	"net/netip"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/known"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

const (
	// converterTimeout bounds the time for connecting to a converter and for the converter's connecting to the server.
	converterTimeout = 2 * time.Second
	// earlyTimeout replaces converterTimeout if the program's first bytes were sent with the message. No other way can
	// be tried then.
	earlyTimeout = 30 * time.Second
	// addressTimeout bounds connecting to a server directly if it has more addresses to try.
	addressTimeout = 3 * time.Second
	// silentTimeout bounds connecting to a server directly after a converter that works has waited in vain for it. The
	// program sees its connection as up all this time, and could try another address of the server if it failed.
	silentTimeout = 8 * time.Second
)

// attempt connects to one of a server's addresses. It tries each address first through the converters that choice
// names, then directly. One goroutine at a time uses it.
type attempt struct {
	client  *Client
	who     choice.Who       // has called
	direct  bool             // no converter is wanted for this server
	asked   bool             // a converter was asked for the first of servers
	reached bool             // it ended with a connection
	source  netip.Addr       // of direct connections; zero: an address of this host
	servers []netip.AddrPort // the addresses that are left; the first is being tried
	ways    []netip.AddrPort // converters that are left to try for that address
	via     netip.AddrPort   // the converter that is being tried; zero: directly
	fast    bool             // the message may be in the SYN
	from    netip.Addr       // with fast: the address of this host from which the message comes
	answer  rfc8803.Answer   // of the converter
	given   bool             // the converter has given a cookie
	silent  netip.AddrPort   // a converter that did not answer in time; zero: none
	said    []byte           // by the program, while its server's name is not known
}

// begin returns the first way to a server for a client. At least one address must be given.
func (c *Client) begin(who choice.Who, servers ...netip.AddrPort) (*attempt, *engine.Dial) {
	a := &attempt{client: c, who: who, servers: servers}
	first := a.address()
	return a, first
}

// beginDirectly is like begin, but uses no converter.
func (c *Client) beginDirectly(who choice.Who, servers ...netip.AddrPort) (*attempt, *engine.Dial) {
	a := &attempt{client: c, who: who, direct: true, servers: servers}
	first := a.address()
	return a, first
}

// beginFrom is like begin. The server may see the address of the client's host (choice.Source).
func (c *Client) beginFrom(who choice.Who, server netip.AddrPort) (*attempt, *engine.Dial) {
	a := &attempt{client: c, who: who, servers: []netip.AddrPort{server}}
	c.Update(func(choice *choice.Choice) { a.source = choice.Source(who.Host) })
	first := a.address()
	return a, first
}

// address returns the first way to the first address.
func (a *attempt) address() *engine.Dial {
	a.asked = false
	if !a.direct {
		a.ways = a.client.Choose(a.who, a.servers[0])
	}
	return a.way()
}

// way returns the next way to the first address.
func (a *attempt) way() *engine.Dial {
	for len(a.ways) > 0 {
		a.via, a.ways = a.ways[0], a.ways[1:]
		a.given, a.asked = false, true
		if d := a.convert(a.client.cookie(a.via)); d != nil {
			return d
		}
	}
	a.via = netip.AddrPort{}
	// A server that is known to speak no MPTCP is dialled by TCP for a while, because Linux may lose data of
	// connections that fell back to TCP.
	plain := a.client.IsPlain(a.servers[0])
	d := &engine.Dial{
		To: a.servers[0], From: netip.AddrPortFrom(a.source, 0), MPTCP: !plain, NoFallback: known.TakesSeveral(a.servers[0]),
		Mark: a.client.config.Mark,
	}
	switch {
	case len(a.servers) > 1:
		d.Timeout = addressTimeout
	case a.silent.IsValid():
		d.Timeout = silentTimeout
	}
	return d
}

// convert returns the way through a converter, or nil if there is none.
func (a *attempt) convert(cookie []byte) *engine.Dial {
	way, ok := a.client.config.Way(a.via)
	if !ok {
		return nil
	}
	m := rfc8803.Message{Connect: &rfc8803.Connect{Server: a.servers[0]}, Cookie: cookie}
	greeting, err := m.Append(nil)
	if err != nil {
		return nil // a cookie that fits into no message
	}
	a.answer, a.fast = rfc8803.Answer{}, a.tryFastOpen()
	d := &engine.Dial{
		To: a.via, Local: way.Local, MPTCP: true, NoFallback: true, Mark: cmp.Or(way.Mark, a.client.config.Mark),
		Timeout: converterTimeout, Greeting: greeting, Await: a.answer.Hear,
		FastOpen: a.fast,
	}
	a.client.Update(func(c *choice.Choice) {
		if c.Trust(a.via, time.Now()) {
			d.EarlyTimeout = earlyTimeout
		}
	})
	return d
}

// dialled takes the result of the way that was tried. It returns the next way, or the result of the attempt.
func (a *attempt) dialled(r engine.Result) (next *engine.Dial, errno syscall.Errno) {
	now := time.Now()
	if !a.via.IsValid() {
		return a.dialledDirectly(r, now)
	}
	if a.fast {
		a.fastOpened(r, now)
	}
	if a.reached = r.Errno == 0; a.reached {
		a.client.Update(func(c *choice.Choice) { a.carried(c, r, now) })
		if led := a.client.config.Led; led != nil {
			led(r.Local, a.via, a.servers[0])
		}
		return nil, 0
	}
	if r.Early && a.answer.Error == nil {
		// The converter may have forwarded the program's bytes, and the server must not get them twice.
		if r.Errno != syscall.ETIMEDOUT { // the server may be the cause of a timeout
			a.client.Update(func(c *choice.Choice) { c.Failed(a.via, 0, now) })
		}
		return nil, r.Errno
	}
	if e := a.answer.Error; e != nil {
		return a.refused(e, now), 0
	}
	switch {
	case !r.Connected:
		a.client.Update(func(c *choice.Choice) { c.Failed(a.via, 0, now) })
		if r.Errno == syscall.ETIMEDOUT {
			a.ways = nil // the program has waited enough; the next connection begins with another converter
		}
	case r.Errno == syscall.ETIMEDOUT:
		// Either the server is slow or the converter is frozen. If the server does not answer directly either, the
		// server is slow.
		a.silent, a.ways = a.via, nil
	default:
		a.client.Refused(a.via, a.servers[0])
	}
	return a.way(), 0
}

// refused returns the next way after a converter's error.
func (a *attempt) refused(e *rfc8803.Error, now time.Time) *engine.Dial {
	saysHowLong := len(e.Value) > 0 && e.Wait() > 0
	if saysHowLong {
		a.client.Update(func(c *choice.Choice) { c.Failed(a.via, e.Wait(), now) })
	}
	if e.ConcernsServer() {
		// The converter's rules may forbid the server, or its network may not reach it. A direct connection shows the
		// server's own answer.
		a.ways = nil
		return a.way()
	}
	if again := a.takeCookie(e, now); again != nil {
		return again
	}
	if !saysHowLong {
		a.client.Refused(a.via, a.servers[0]) // the reason may concern this server only
	}
	return a.way()
}

// takeCookie repeats the request with a cookie that the converter gave, once.
func (a *attempt) takeCookie(e *rfc8803.Error, now time.Time) *engine.Dial {
	if e.Code != rfc8803.MissingCookie || len(e.Value) == 0 || a.given {
		return nil
	}
	a.given = true
	a.client.keep(a.via, e.Value, now)
	return a.convert(e.Value)
}

// carried remembers what a converter's answer has shown.
func (a *attempt) carried(c *choice.Choice, r engine.Result, now time.Time) {
	total := r.Answer
	if r.FastOpen == engine.FastOpenAcked {
		total = 0 // the answer waited for the handshake, and does not show how far the server is
	}
	c.Carried(a.via, a.servers[0], r.Handshake, total, now)
	if a.answer.ExtendedHeader != nil {
		if speaks, err := rfc8803.HasMPCapable(a.answer.ExtendedHeader); err == nil {
			c.Learned(a.servers[0], speaks, now)
		}
	}
}

func (a *attempt) dialledDirectly(r engine.Result, now time.Time) (next *engine.Dial, errno syscall.Errno) {
	if a.reached = r.Errno == 0; !a.reached {
		if isUnreached(r.Errno) {
			a.missed(now)
		}
		return a.nextAddress(r.Errno)
	}
	if r.MPTCP || r.Plain {
		a.client.Update(func(c *choice.Choice) { c.Learned(a.servers[0], r.MPTCP, now) })
	}
	if a.silent.IsValid() {
		a.client.Unserved(a.silent, a.servers[0])
	}
	return nil, 0
}

// isUnreached reports whether an error of a direct connection means that the server was not reached. Other errors may have
// another cause.
func isUnreached(e syscall.Errno) bool {
	switch e {
	case syscall.ECONNREFUSED, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH:
		return true
	default:
		return false
	}
}

// missed notes that the first address was reached neither through a converter nor directly.
func (a *attempt) missed(now time.Time) {
	if a.asked {
		a.client.Update(func(c *choice.Choice) { c.Unreached(a.servers[0], now) })
	}
}

// ended is called when nobody waits for the connection any more. If the program gave up while neither the converter nor
// the server had answered, that counts as if the server were not reached: the program's own limit for connecting may
// have ended before the relay's.
func (a *attempt) ended() {
	if !a.reached && len(a.servers) > 0 && a.silent.IsValid() && !a.via.IsValid() {
		a.missed(time.Now())
	}
}

// spoke takes whether the server has said something over the connection.
func (a *attempt) spoke(spoke bool) {
	if !a.via.IsValid() || len(a.servers) == 0 {
		return
	}
	now := time.Now()
	a.client.Update(func(c *choice.Choice) {
		if its := c.Account(a.who, now); spoke {
			its.Spoke(a.via)
		} else {
			its.Silent(a.via, a.servers[0], now)
		}
	})
}

// nextAddress goes on with the server's next address, if it has one.
func (a *attempt) nextAddress(errno syscall.Errno) (*engine.Dial, syscall.Errno) {
	if a.silent, a.servers = (netip.AddrPort{}), a.servers[1:]; len(a.servers) == 0 {
		return nil, errno
	}
	return a.address(), 0
}
