package rfc8803

import (
	"fmt"
	"syscall"
)

// ErrorCode says why a converter does not serve a connection (section 6.2.8).
type ErrorCode byte

// The codes of section 6.2.8.
const (
	UnsupportedVersion     ErrorCode = 0 // Value: the version that is supported
	MalformedMessage       ErrorCode = 1
	UnsupportedMessage     ErrorCode = 2 // Value: the types that are not supported
	MissingCookie          ErrorCode = 3 // Value: the cookie to send, or nothing
	NotAuthorized          ErrorCode = 32
	UnsupportedTCPOption   ErrorCode = 33 // Value: the kinds that are not supported
	ResourceExceeded       ErrorCode = 64
	NetworkFailure         ErrorCode = 65
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

// Error is an Error TLV.
type Error struct {
	Code  ErrorCode
	Value []byte // without padding; its meaning depends on Code
}

func (e *Error) Error() string { return "the converter reports: " + e.Code.String() }

// Codes of ICMP's destination unreachable (RFC 792, RFC 1812).
const (
	icmpNet        = 0
	icmpHost       = 1
	icmpProhibited = 13
)

// ErrorOf returns the error that reports why connecting to a server failed.
func ErrorOf(errno syscall.Errno) *Error {
	switch errno {
	case syscall.ECONNREFUSED, syscall.ECONNRESET:
		return &Error{Code: ConnectionReset}
	case syscall.ENETUNREACH:
		return &Error{Code: DestinationUnreachable, Value: []byte{icmpNet}}
	case syscall.EHOSTUNREACH:
		return &Error{Code: DestinationUnreachable, Value: []byte{icmpHost}}
	case syscall.EACCES, syscall.EPERM:
		return &Error{Code: DestinationUnreachable, Value: []byte{icmpProhibited}}
	case syscall.ENOBUFS, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.EAGAIN:
		return &Error{Code: ResourceExceeded}
	}
	return &Error{Code: NetworkFailure} // such as a timeout
}

// Errno returns the error that connect() would have given without a converter. ok is false if the
// error says nothing about the server.
func (e *Error) Errno() (errno syscall.Errno, ok bool) {
	switch e.Code {
	case ConnectionReset:
		return syscall.ECONNREFUSED, true
	case NetworkFailure:
		return syscall.ETIMEDOUT, true
	case DestinationUnreachable:
		switch {
		case len(e.Value) == 0 || e.Value[0] == icmpNet:
			return syscall.ENETUNREACH, true
		case e.Value[0] == icmpProhibited:
			return syscall.EACCES, true
		}
		return syscall.EHOSTUNREACH, true
	case UnsupportedVersion, MalformedMessage, UnsupportedMessage, MissingCookie, NotAuthorized, UnsupportedTCPOption, ResourceExceeded:
	}
	return 0, false
}
