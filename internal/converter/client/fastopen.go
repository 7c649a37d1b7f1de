package client

import (
	"cmp"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine"
)

// tryFastOpen reports whether the connection to a converter that is made now has its message in the SYN. It sets the
// address from which the connection comes. If it reports true, fastOpened must be called with the result.
func (a *attempt) tryFastOpen() bool {
	a.from = a.client.fastSource(a.via)
	tries := false
	a.client.Update(func(c *choice.Choice) {
		tries = a.from.IsValid() && c.TryFastOpen(a.from, a.via, a.servers[0], time.Now())
	})
	return tries
}

// fastOpened notes the result of a connection with FastOpen.
func (a *attempt) fastOpened(r engine.Result, now time.Time) {
	how := choice.FastOpenUnknown
	switch {
	case r.FastOpen == engine.FastOpenFailed:
		how = choice.FastOpenFailed
	case r.FastOpen == engine.FastOpenUnanswered, r.FastOpen == engine.FastOpenAcked && r.Errno != 0 && a.answer.Error == nil:
		how = choice.FastOpenSilent
	case r.FastOpen == engine.FastOpenAcked:
		how = choice.FastOpenWorked
	}
	a.client.Update(func(c *choice.Choice) { c.FastOpened(a.from, a.via, how, now) })
}

// MayFastOpen reports whether a program's own connection to a converter may have its message in the SYN. The reports of
// users other than root hold for themselves, so their programs do not try a path that is not proven.
func (c *Client) MayFastOpen(who choice.Who, converter, server netip.AddrPort) (may bool) {
	from := c.fastSource(converter)
	if !from.IsValid() {
		return false
	}
	c.Update(func(c *choice.Choice) {
		if now := time.Now(); who == (choice.Who{}) {
			may = c.MayFastOpen(from, converter, server, now)
		} else {
			may = c.MayFastOpenFor(who, from, converter, server, now)
		}
	})
	return may
}

// FastOpened notes the outcome of a connection for which MayFastOpen was true.
func (c *Client) FastOpened(converter netip.AddrPort, how choice.FastOpen) {
	if from := c.fastSource(converter); from.IsValid() {
		c.Update(func(c *choice.Choice) { c.FastOpened(from, converter, how, time.Now()) })
	}
}

// fastSource returns the address from which this host's connections to a converter come. It returns the zero Addr if
// messages are not to go in SYNs, or if no route leads to the converter.
func (c *Client) fastSource(converter netip.AddrPort) netip.Addr {
	wanted := false
	c.Update(func(c *choice.Choice) { wanted = c.WantsFastOpen() })
	if !wanted {
		return netip.Addr{}
	}
	way, ok := c.config.Way(converter)
	switch {
	case !ok:
		return netip.Addr{}
	case way.Local.IsValid():
		return way.Local
	}
	return sourceTo(converter, cmp.Or(way.Mark, c.config.Mark))
}

// sourceTo returns the address from which connections to another come, according to the kernel's routes. It sends nothing.
func sourceTo(to netip.AddrPort, mark uint32) netip.Addr {
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if addr := to.Addr().Unmap(); addr.Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: addr.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}
	}
	defer unix.Close(fd)
	if mark != 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	}
	if err == nil {
		err = unix.Connect(fd, sa)
	}
	if err != nil {
		return netip.Addr{}
	}
	switch own, _ := unix.Getsockname(fd); own := own.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(own.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(own.Addr).Unmap()
	}
	return netip.Addr{}
}
