package client

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"syscall"

	"github.com/detour-collective/dcol/internal/converter/engine"
)

// SOCKS returns a front that speaks SOCKS5 (RFC 1928) without authentication, and only the command CONNECT.
func (c *Client) SOCKS() engine.Front { return socksFront{c} }

type socksFront struct{ client *Client }

// Open implements engine.Front.
func (f socksFront) Open(a engine.Accepted) (engine.Opening, error) {
	return &socks{named: named{client: f.client, peer: a.Peer.Addr(), reply: socksReply}}, nil
}

const (
	socksVersion = 5
	socks4       = 4
	socksConnect = 1

	socksNoAuthentication   = 0
	socksNoAcceptableMethod = 0xff

	socksIPv4 = 1
	socksName = 3
	socksIPv6 = 4
)

// Replies of section 6.
const (
	socksSucceeded          = 0
	socksFailure            = 1
	socksNotAllowed         = 2
	socksNetworkUnreachable = 3
	socksHostUnreachable    = 4
	socksRefused            = 5
	socksNoSuchCommand      = 7
	socksNoSuchAddressType  = 8
)

// socks is the state of one connection.
type socks struct {
	named
	greeted bool
}

// Read implements engine.Opening.
func (o *socks) Read(b []byte) engine.Step {
	if o.greeted {
		return o.request(b)
	}
	greeting := o.greet(b)
	if !o.greeted {
		return greeting
	}
	// A program may send its request without waiting for the answer.
	request := o.request(b[greeting.Used:])
	request.Used += greeting.Used
	request.Reply = slices.Concat(greeting.Reply, request.Reply)
	return request
}

// greet agrees on no authentication (section 3).
func (o *socks) greet(b []byte) engine.Step {
	switch {
	case len(b) > 0 && b[0] != socksVersion:
		return engine.Step{Close: true}
	case len(b) < 2 || len(b) < 2+int(b[1]):
		return engine.Step{}
	}
	methods := b[2 : 2+int(b[1])]
	if !slices.Contains(methods, socksNoAuthentication) {
		return engine.Step{Reply: []byte{socksVersion, socksNoAcceptableMethod}, Close: true}
	}
	o.greeted = true
	return engine.Step{Used: 2 + len(methods), Reply: []byte{socksVersion, socksNoAuthentication}}
}

// request reads the server that the program wants (section 4).
func (o *socks) request(b []byte) engine.Step {
	const header, port = 4, 2
	switch {
	case len(b) > 0 && b[0] != socksVersion:
		return engine.Step{Close: true}
	case len(b) < header+1:
		return engine.Step{}
	case b[1] != socksConnect:
		return engine.Step{Reply: socksAnswer(socksNoSuchCommand), Close: true}
	}
	var start, end int // of the address
	switch b[3] {
	case socksIPv4:
		start, end = header, header+4
	case socksIPv6:
		start, end = header, header+16
	case socksName:
		start, end = header+1, header+1+int(b[header])
	default:
		return engine.Step{Reply: socksAnswer(socksNoSuchAddressType), Close: true}
	}
	if len(b) < end+port {
		return engine.Step{}
	}
	host := string(b[start:end])
	if b[3] != socksName {
		addr, _ := netip.AddrFromSlice(b[start:end])
		host = addr.String()
	}
	return o.connect(end+port, host, binary.BigEndian.Uint16(b[end:]))
}

// socks4Refusal is the answer to programs that speak SOCKS4, which knows neither names nor IPv6.
var socks4Refusal = []byte{0, 91, 0, 0, 0, 0, 0, 0}

// socksReply returns the reply for an errno (section 6).
func socksReply(errno syscall.Errno) []byte {
	code := byte(socksFailure)
	switch errno {
	case 0:
		code = socksSucceeded
	case syscall.EACCES, syscall.EPERM:
		code = socksNotAllowed
	case syscall.ENETUNREACH:
		code = socksNetworkUnreachable
	case syscall.EHOSTUNREACH, syscall.ETIMEDOUT:
		code = socksHostUnreachable
	case syscall.ECONNREFUSED, syscall.ECONNRESET:
		code = socksRefused
	}
	return socksAnswer(code)
}

// socksAnswer returns a reply without the address of the connection to the server, which programs do not need.
func socksAnswer(code byte) []byte { return []byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0} }
