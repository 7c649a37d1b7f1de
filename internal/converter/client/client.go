// Package client connects programs of this host, or of a gateway's network, to servers: through a converter if that
// helps, otherwise directly with MPTCP. Each front learns the server of a connection in its own way:
//
//	transparent.go   from the address that was called (TPROXY)
//	redirected.go    from whoever redirected the connection
//	waiting.go       from the supervisor of a program that waits, which sends a Convert message
//	socks.go         from the program, which speaks SOCKS5
//	connect.go       from the program, which sends an HTTP CONNECT
//	proxy.go         either of these two
//	attempt.go       the ways to a server, one after another; shared by all
//	suspect.go       whether a converter works that did not serve a connection; shared by all
//	overheard.go     excluded names that the clients of TLS ask for; shared by all
package client

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/known"
)

// Config are a client's settings.
type Config struct {
	Policy choice.Policy
	// Cookie returns the cookie to send to a converter. If it returns nil, the client sends the one that the converter
	// gave, if any. Several goroutines call it.
	Cookie func(converter netip.AddrPort) []byte
	// Way returns the settings for calling a converter. ok is false if it must not be called now. If Way is nil,
	// converters are called like any server. Several goroutines call it.
	Way func(converter netip.AddrPort) (way Way, ok bool)
	// Mark is the mark (SO_MARK) of the client's own sockets, so that rules which redirect connections can leave them
	// alone; 0: none.
	Mark uint32
	// Resolve returns the addresses of a name; nil: names are resolved as the host's programs do.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Heard returns when a handshake of this host last showed that a server speaks no MPTCP. ok is false if none did
	// lately. If Heard is nil, nobody looks at handshakes. Several goroutines call it.
	Heard func(server netip.AddrPort) (at time.Time, ok bool)
	// Led, if set, is called when a converter has connected to a server, with the address of this host's connection to the
	// converter. It must not block. Several goroutines call it.
	Led func(local, converter, server netip.AddrPort)
	// Excluded, if set, is called after an address was excluded because a client asked there for an excluded name. It
	// must not block.
	Excluded func()
}

// Way holds the settings of sockets that call a converter.
type Way struct {
	Local netip.Addr // the address to call from; zero: any
	Mark  uint32     // of the sockets; 0: that of the client's other sockets
}

// Client holds what the fronts share. New makes it.
type Client struct {
	config    Config
	resolving chan struct{} // has an element for each name that is being resolved
	// ask finds out whether a converter works. If it does not, wait is the time for which it wants to be left alone.
	ask func(converter netip.AddrPort) (works bool, wait time.Duration)

	mu     sync.Mutex
	choice *choice.Choice
	given  *known.Map[netip.AddrPort, []byte] // cookies that converters gave
}

const (
	// resolvingMost bounds the names that are resolved at a time. Each has a goroutine.
	resolvingMost = 128
	resolveFor    = 8 * time.Second

	// givenMost and givenFor bound the cookies of converters.
	givenMost = 1024
	givenFor  = time.Hour
)

// New returns a client that knows no converters yet.
func New(c Config) *Client {
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if c.Cookie == nil {
		c.Cookie = func(netip.AddrPort) []byte { return nil }
	}
	if c.Heard == nil {
		c.Heard = func(netip.AddrPort) (time.Time, bool) { return time.Time{}, false }
	}
	if c.Way == nil {
		c.Way = func(netip.AddrPort) (Way, bool) { return Way{}, true }
	}
	made := &Client{
		config: c, resolving: make(chan struct{}, resolvingMost),
		choice: choice.New(c.Policy), given: known.NewMap[netip.AddrPort, []byte](givenMost),
	}
	made.ask = made.askWhetherItWorks
	return made
}

// Update lets change read or change the Choice, which decides about new connections. Any goroutine may call it. change
// must not keep its argument.
func (c *Client) Update(change func(*choice.Choice)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c.choice)
}

// Choose returns the converters to try for a connection of who to a server, in this order. If there are none, the server is
// reached directly.
func (c *Client) Choose(who choice.Who, server netip.AddrPort) (converters []netip.AddrPort) {
	at, plain := time.Time{}, false
	if !c.IsPlain(server) {
		at, plain = c.config.Heard(server)
	}
	c.Update(func(choice *choice.Choice) {
		if plain {
			choice.Learned(server, false, at)
		}
		converters = choice.Choose(who, server, time.Now())
	})
	return converters
}

// IsPlain reports whether a server is known to speak no MPTCP.
func (c *Client) IsPlain(server netip.AddrPort) (is bool) {
	c.Update(func(choice *choice.Choice) { is = choice.IsPlain(server, time.Now()) })
	return is
}

// Table returns what Choose would return for this host's connections to all servers now.
func (c *Client) Table() (t choice.Table) {
	c.Update(func(choice *choice.Choice) { t = choice.Table(time.Now()) })
	return t
}

// Aside returns the converters that are not used now for this host.
func (c *Client) Aside() (aside map[netip.AddrPort]choice.Aside) {
	c.Update(func(choice *choice.Choice) { aside = choice.Aside(time.Now()) })
	return aside
}

// Excluded returns addresses that are excluded by names, at most the given number, and how many there are.
func (c *Client) Excluded(most int) (list []choice.Excluded, all int) {
	c.Update(func(choice *choice.Choice) { list, all = choice.Excluded(most, time.Now()) })
	return list, all
}

// ExcludesName reports whether connections to servers of this name go directly.
func (c *Client) ExcludesName(host string) (is bool) {
	c.Update(func(choice *choice.Choice) { is = choice.ExcludesName(host) })
	return is
}

// excludesNames reports whether any name is excluded.
func (c *Client) excludesNames() (does bool) {
	c.Update(func(choice *choice.Choice) { does = choice.ExcludesNames() })
	return does
}

// cookie returns the cookie to send to a converter.
func (c *Client) cookie(converter netip.AddrPort) []byte {
	if b := c.config.Cookie(converter); b != nil {
		return b
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b, _ := c.given.Get(converter, time.Now())
	return b
}

// keep remembers the cookie that a converter gave.
func (c *Client) keep(converter netip.AddrPort, cookie []byte, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.given.Set(converter, cookie, now.Add(givenFor))
}
