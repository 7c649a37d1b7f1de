package choice

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/converter/known"
)

// A client chooses its servers and what it says to them, and so how its connections end. And a program can report to the
// relay what it likes. So such outcomes hold for the connections of the same client only, in its Account.

// Who identifies a client. The zero Who is this host: root, and programs whose user is not known.
type Who struct {
	User uint32     // of a program that has named its server itself
	Host netip.Addr // another host, such as one of the LAN; zero: this one
}

const (
	// accountsMost bounds the accounts. Hosts of a LAN can take many IPv6 addresses; the least recently used accounts go first.
	accountsMost = 128
	// accountFor is the time for which an account is kept after it was last used.
	accountFor = time.Hour
	// accountServersMost bounds the servers of each map of an account, ownServersMost those of this host's.
	accountServersMost = 256
	ownServersMost     = 16 << 10
)

// Account holds what one client's connections have shown, and what the client has reported.
type Account struct {
	speaks   *known.Map[netip.AddrPort, struct{}] // servers that speak MPTCP, according to a converter
	unserved *known.Map[way, struct{}]            // ways that led to no connection
	silent   *known.Map[ending, struct{}]         // ways on which a connection ended before the server spoke
	times    *known.Map[way, time.Duration]       // round-trip times to the server
	slow     *known.Map[netip.AddrPort, struct{}] // converters to which no message goes in the SYN
	silences map[netip.AddrPort]*silence          // by converter
}

// ending is a server's port, and the converter by which it was called.
type ending struct {
	converter, server netip.AddrPort
}

// silence counts the servers that said nothing through a converter.
type silence struct {
	servers []netip.Addr  // at most refusalsMost, since one has said something
	backoff time.Duration // zero: the converter is used
	until   time.Time     // until then it is not used
}

func newAccount(servers int) *Account {
	return &Account{
		speaks: known.NewMap[netip.AddrPort, struct{}](servers), unserved: known.NewMap[way, struct{}](servers),
		silent: known.NewMap[ending, struct{}](servers), times: known.NewMap[way, time.Duration](servers),
		slow: known.NewMap[netip.AddrPort, struct{}](servers), silences: make(map[netip.AddrPort]*silence),
	}
}

// Account returns a client's account.
func (c *Choice) Account(who Who, now time.Time) *Account {
	if who.Host = who.Host.Unmap(); who == (Who{}) {
		return c.own
	}
	a, ok := c.accounts.Get(who, now)
	if !ok {
		a = newAccount(accountServersMost)
	}
	c.accounts.Set(who, a, now.Add(accountFor))
	return a
}

// account is like Account, for decisions. It makes none: an account without entries changes nothing.
func (c *Choice) account(who Who, now time.Time) *Account {
	if who.Host = who.Host.Unmap(); who == (Who{}) {
		return c.own
	}
	if a, ok := c.accounts.Get(who, now); ok {
		return a
	}
	return nothing
}

// nothing is the account of a client about which nothing is known.
var nothing = newAccount(0)

// serves reports whether a converter may be asked for a server.
func (a *Account) serves(converter, server netip.AddrPort, now time.Time) bool {
	_, unserved := a.unserved.Get(way{converter, server.Addr()}, now)
	_, silent := a.silent.Get(ending{converter, server}, now)
	s := a.silences[converter]
	return !unserved && !silent && (s == nil || !now.Before(s.until))
}

// Learned notes whether a server speaks MPTCP, as a program of the client says.
func (a *Account) Learned(server netip.AddrPort, mptcp bool, now time.Time) {
	if server = unmapped(server); mptcp {
		a.speaks.Set(server, struct{}{}, now.Add(known.SpeaksFor))
	} else {
		a.speaks.Forget(server)
	}
}

// Unserved notes that a converter did not serve a connection to a server, as a program of the client says.
func (a *Account) Unserved(converter, server netip.AddrPort, now time.Time) {
	a.unserved.Set(way{converter, unmapped(server).Addr()}, struct{}{}, now.Add(unservedFor))
}

// Carried notes the round-trip time to a server through a converter, as a program of the client says; zero: not measured.
func (a *Account) Carried(converter, server netip.AddrPort, total time.Duration, now time.Time) {
	if total > 0 {
		a.times.Set(way{converter, unmapped(server).Addr()}, total, now.Add(timesFor))
	}
}

// FastOpened notes how a message in the SYN to a converter fared, as a program of the client says.
func (a *Account) FastOpened(converter netip.AddrPort, how FastOpen, now time.Time) {
	if how == FastOpenFailed || how == FastOpenSilent {
		a.slow.Set(converter, struct{}{}, now.Add(fastBackoffLeast))
	}
}

// Spoke notes that a server has said something on a connection through a converter.
func (a *Account) Spoke(converter netip.AddrPort) { delete(a.silences, converter) }

// Silent notes that a connection through a converter to a server ended from there before the server said anything. The
// converter may have lied, or something near it may cut such connections. So it is not asked for this port of the server for a
// while. After refusalsMost servers in a row, it is not used for this client for five seconds; each further server doubles
// that, up to five minutes.
func (a *Account) Silent(converter, server netip.AddrPort, now time.Time) {
	server = unmapped(server)
	a.silent.Set(ending{converter, server}, struct{}{}, now.Add(unservedFor))
	s := a.silences[converter]
	if s == nil {
		s = &silence{}
		a.silences[converter] = s
	}
	if !now.Before(s.until) && inARow(&s.servers, server.Addr()) {
		s.backoff = longer(s.backoff)
		s.until = now.Add(s.backoff)
	}
}
