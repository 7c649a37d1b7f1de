package rfc8803

import (
	"bytes"
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// ErrorCode is the reason why a converter does not serve a connection (section 6.2.8).
type ErrorCode byte

// The codes of section 6.2.8.
const (
	UnsupportedVersion     ErrorCode = 0 // Value: the version that is supported
	MalformedMessage       ErrorCode = 1 // Value: the message
	UnsupportedMessage     ErrorCode = 2 // Value: the message
	MissingCookie          ErrorCode = 3 // Value: the cookie to send
	NotAuthorized          ErrorCode = 32
	UnsupportedTCPOption   ErrorCode = 33 // Value: the kinds that are not supported
	ResourceExceeded       ErrorCode = 64 // Value: the number of seconds to leave the converter alone
	NetworkFailure         ErrorCode = 65 // Value: as ResourceExceeded
	ConnectionReset        ErrorCode = 96
	DestinationUnreachable ErrorCode = 97 // Value: the code of the ICMP message
)

var codeNames = map[ErrorCode]string{
	UnsupportedVersion: "unsupported version", MalformedMessage: "malformed message", UnsupportedMessage: "unsupported message",
	MissingCookie: "missing cookie", NotAuthorized: "not authorized", UnsupportedTCPOption: "unsupported TCP option",
	ResourceExceeded: "resource exceeded", NetworkFailure: "network failure", ConnectionReset: "the server refused the connection",
	DestinationUnreachable: "destination unreachable",
}

func (c ErrorCode) String() string {
	if name, ok := codeNames[c]; ok {
		return name
	}
	return fmt.Sprintf("error %d", byte(c))
}

// hasAlignedValue reports whether the value begins at a word's boundary, after a zero byte (figure 23). Zeros at its
// end may belong to the value.
func (c ErrorCode) hasAlignedValue() bool {
	return c == MalformedMessage || c == UnsupportedMessage || c == MissingCookie
}

// Error is an Error TLV.
type Error struct {
	Code ErrorCode
	// Value's meaning depends on Code. Decoded, a message or a cookie may end in up to three zero bytes of padding.
	Value []byte
}

// Echo returns the error that answers the message at the start of b. It contains as much of the message as fits.
func Echo(code ErrorCode, b []byte) *Error {
	n, err := Len(b)
	if err != nil {
		n = HeaderLen // the message's length is unknown
	}
	const most = MaxLen - HeaderLen - wordLen
	return &Error{Code: code, Value: bytes.Clone(b[:min(n, len(b), most)])}
}

// busyFor is the time for which a converter without resources is left alone if it does not state a time.
const busyFor = 30 * time.Second

// Wait returns the time for which a client should leave the converter alone, or 0 if the error does not ask for that. A
// NetworkFailure without a value does not, because converters also send it if a single server does not answer.
func (e *Error) Wait() time.Duration {
	switch {
	case e.Code != ResourceExceeded && e.Code != NetworkFailure:
		return 0
	case len(e.Value) > 0:
		return time.Duration(e.Value[0]) * time.Second
	case e.Code == ResourceExceeded:
		return busyFor
	}
	return 0
}

func (e *Error) Error() string { return "the converter reports: " + e.Code.String() }

// Codes of the destination unreachable messages of ICMP (RFC 792, RFC 1812) and ICMPv6 (RFC 4443).
const (
	icmpNet        = 0
	icmpHost       = 1
	icmpProhibited = 13

	icmp6NoRoute    = 0
	icmp6Prohibited = 1
	icmp6Address    = 3
)

// ErrorOf returns the error that reports why connecting to a server failed.
func ErrorOf(errno syscall.Errno, server netip.Addr) *Error {
	unreachable := func(code, code6 byte) *Error {
		if server.Unmap().Is6() {
			code = code6
		}
		return &Error{Code: DestinationUnreachable, Value: []byte{code}}
	}
	switch errno {
	case syscall.ECONNREFUSED, syscall.ECONNRESET:
		return &Error{Code: ConnectionReset}
	case syscall.ENETUNREACH:
		return unreachable(icmpNet, icmp6NoRoute)
	case syscall.EHOSTUNREACH:
		return unreachable(icmpHost, icmp6Address)
	case syscall.EACCES, syscall.EPERM:
		return unreachable(icmpProhibited, icmp6Prohibited)
	case syscall.ENOBUFS, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.EAGAIN:
		return &Error{Code: ResourceExceeded}
	}
	return &Error{Code: NetworkFailure} // such as a timeout
}

// ConcernsServer reports whether the converter could not reach the server, in contrast to not serving the client.
func (e *Error) ConcernsServer() bool {
	return e.Code == NetworkFailure || e.Code == ConnectionReset || e.Code == DestinationUnreachable
}
