package client

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// Unserved notes that a converter did not answer in time for a server, and finds out in the background whether the
// converter works. Until the answer is no, other servers are reached through it: a program that connects to servers
// behind firewalls must not keep other programs from using it. Any goroutine may call it.
func (c *Client) Unserved(converter, server netip.AddrPort) {
	c.Update(func(choice *choice.Choice) { choice.Unserved(converter, server, time.Now()) })
	c.Suspect(converter)
}

// Refused is like Unserved, for a converter that refused to connect to a server. A program may have used up the
// converter's ports to that server.
func (c *Client) Refused(converter, server netip.AddrPort) {
	c.Update(func(choice *choice.Choice) { choice.Refused(converter, server, time.Now()) })
	c.Suspect(converter)
}

// Suspect finds out in the background whether a converter that did not serve a connection works. Any goroutine may call it.
func (c *Client) Suspect(converter netip.AddrPort) {
	ask := false
	c.Update(func(choice *choice.Choice) { ask = choice.Suspect(converter, time.Now()) })
	if !ask {
		return
	}
	go func() {
		works, wait := c.ask(converter)
		c.Update(func(choice *choice.Choice) { choice.Checked(converter, works, wait, time.Now()) })
	}()
}

// askWhetherItWorks asks a converter for the options that it supports (the Info TLV). The answer needs no server, so it
// comes at once. The converter works if it answers, unless it says that it does not serve this host.
func (c *Client) askWhetherItWorks(converter netip.AddrPort) (works bool, wait time.Duration) {
	way, ok := c.config.Way(converter)
	if !ok {
		return true, 0 // it must not be called now, so nothing is known
	}
	question, err := rfc8803.Message{Info: true, Cookie: c.cookie(converter)}.Append(nil)
	if err != nil {
		return true, 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), converterTimeout)
	defer cancel()
	conn, err := dialer(way.Local, cmp.Or(way.Mark, c.config.Mark)).DialContext(ctx, "tcp", converter.String())
	if err != nil {
		return false, 0
	}
	defer conn.Close()
	if until, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(until) // an error also shows in the Write
	}
	if _, err := conn.Write(question); err != nil {
		return false, 0
	}
	var answer rfc8803.Answer
	for b := make([]byte, 0, rfc8803.MaxLen); len(b) < cap(b); {
		n, err := conn.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		_, done, errno := answer.Hear(b)
		switch {
		case done:
			return true, 0
		case answer.Error != nil:
			code, wait := answer.Error.Code, answer.Error.Wait()
			return code != rfc8803.NotAuthorized && code != rfc8803.UnsupportedVersion && wait == 0, wait
		case errno != 0 || err != nil:
			return false, 0
		}
	}
	return false, 0
}

// dialer returns a dialer for MPTCP sockets with a mark. They call from an address if that is valid.
func dialer(from netip.Addr, mark uint32) *net.Dialer {
	d := &net.Dialer{}
	d.SetMultipathTCP(true)
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	if mark != 0 {
		d.Control = func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
			})
			return cmp.Or(err, failed)
		}
	}
	return d
}
