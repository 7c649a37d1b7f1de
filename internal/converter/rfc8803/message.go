// Package rfc8803 encodes and decodes the messages of the 0-RTT TCP Convert Protocol (RFC 8803). A
// client sends one at the start of a connection to a converter, to name the server. The converter
// answers with one before it forwards data.
package rfc8803

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Port is the port at which converters listen by default. Other implementations use the same. The RFC assigns none
// (section 10.1), and leaves the choice to a converter's operator.
const Port = 5124

// Version is the only version of the protocol.
const Version = 1

// HeaderLen is the length of the fixed header in bytes (section 6.1).
const HeaderLen = 4

// MaxLen is the length of the longest message in bytes. A byte of the header is the number of 32-bit words.
const MaxLen = 255 * wordLen

const (
	magic   = 0x2263
	wordLen = 4
)

// Types of TLVs (section 6.2).
const (
	typeReserved       = 0
	typeInfo           = 1
	typeConnect        = 10
	typeExtendedHeader = 20
	typeSupported      = 21
	typeCookie         = 22
	typeError          = 30
)

// Message is a sequence of TLVs, each present at most once.
type Message struct {
	// Info asks for the TCP extensions that the converter supports (section 6.2.3).
	Info bool
	// Connect asks for a connection to a server (section 6.2.5).
	Connect *Connect
	// Supported answers Info (section 6.2.4).
	Supported *Supported
	// ExtendedHeader has the TCP options of the server's SYN+ACK (section 6.2.6). Nil if absent.
	ExtendedHeader []byte
	// Cookie proves that the client may use the converter (section 6.2.7). Nil if absent. Decoded, it
	// may end in up to three zero bytes of padding.
	Cookie []byte
	// Error says that the converter does not serve the connection, or no longer does (section 6.2.8).
	Error *Error
}

// Connect is the server to which the converter connects.
type Connect struct {
	Server netip.AddrPort
	// Options are the TCP options that the client wants in the SYN to the server, padded to a
	// multiple of four bytes.
	Options []byte
}

// Supported lists the kinds of TCP options that a converter supports.
type Supported struct{ Kinds []byte }

var (
	// ErrShort means that the given bytes end before the message does.
	ErrShort = errors.New("the Convert message is not complete yet")
	// ErrMalformed means that the bytes are not a message of the protocol.
	ErrMalformed = errors.New("malformed Convert message")
	// ErrNoLength is an ErrMalformed that is answered with a reset (section 6.1).
	ErrNoLength = fmt.Errorf("%w: total length 0", ErrMalformed)
	// ErrReserved is an ErrMalformed that a converter answers with UnsupportedMessage (section 6.2.2).
	ErrReserved = fmt.Errorf("%w: a TLV of the reserved type 0", ErrMalformed)
)

// VersionError means that the message is of another version than Version. Its TLVs are unknown.
type VersionError struct{ Version byte }

func (e VersionError) Error() string {
	return fmt.Sprintf("Convert version %d is not supported, only %d", e.Version, Version)
}

// UnknownError lists the types of TLVs that this package does not know.
type UnknownError struct{ Types []byte }

func (e UnknownError) Error() string { return fmt.Sprintf("unknown Convert TLVs %v", e.Types) }

// Len returns the length in bytes of the message that begins with header. It returns ErrShort for less than HeaderLen
// bytes, an error that wraps ErrMalformed if no message can begin with header, and a VersionError for other versions.
func Len(header []byte) (int, error) {
	if len(header) < HeaderLen {
		return 0, ErrShort
	}
	if m := binary.BigEndian.Uint16(header[2:]); m != magic {
		return 0, fmt.Errorf("%w: magic number %#04x instead of %#04x", ErrMalformed, m, magic)
	}
	if header[0] != Version {
		return 0, VersionError{header[0]}
	}
	n := int(header[1]) * wordLen
	if n < HeaderLen {
		return 0, ErrNoLength
	}
	return n, nil
}

// Decode decodes the message at the start of b and returns its length. The bytes after it are the connection's data.
// Errors are those of Len, ErrShort if b ends before the message does, and UnknownError if there are unknown TLVs; all
// other TLVs are then decoded. The result refers to b.
func Decode(b []byte) (m Message, n int, err error) {
	n, err = Len(b)
	if err != nil {
		return m, 0, err
	}
	if len(b) < n {
		return m, 0, ErrShort
	}
	var seen, unknown []byte
	for rest := b[HeaderLen:n]; len(rest) > 0; {
		length := int(rest[1]) * wordLen
		if length == 0 || length > len(rest) {
			return m, 0, fmt.Errorf("%w: a TLV of type %d with length %d in %d bytes", ErrMalformed, rest[0], length, len(rest))
		}
		kind := rest[0]
		if slices.Contains(seen, kind) {
			return m, 0, fmt.Errorf("%w: two TLVs of type %d", ErrMalformed, kind)
		}
		seen = append(seen, kind)
		known, err := m.decodeTLV(kind, rest[2:length])
		if err != nil {
			return m, 0, err
		}
		if !known {
			unknown = append(unknown, kind)
		}
		rest = rest[length:]
	}
	if len(unknown) > 0 {
		return m, n, UnknownError{unknown}
	}
	return m, n, nil
}

// decodeTLV decodes one TLV. b begins with its third byte.
func (m *Message) decodeTLV(kind byte, b []byte) (known bool, err error) {
	const addrLen = 16
	value := b[2:] // of TLVs that begin with two reserved bytes or a port
	switch kind {
	case typeInfo:
		m.Info = true
		if len(value) > 0 {
			err = fmt.Errorf("%w: an Info TLV of %d bytes", ErrMalformed, 2+len(b))
		}
	case typeConnect:
		if len(value) < addrLen {
			return true, fmt.Errorf("%w: a Connect TLV of %d bytes", ErrMalformed, 2+len(b))
		}
		addr := netip.AddrFrom16([addrLen]byte(value)).Unmap()
		m.Connect = &Connect{Server: netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b))}
		if len(value) > addrLen {
			m.Connect.Options = value[addrLen:]
		}
	case typeSupported:
		m.Supported = &Supported{Kinds: withoutPadding(value)}
	case typeExtendedHeader:
		m.ExtendedHeader = value
	case typeCookie:
		m.Cookie = value
	case typeError:
		m.Error = decodeError(ErrorCode(b[0]), b[1:])
	case typeReserved:
		err = ErrReserved
	default:
		return false, nil
	}
	return true, err
}

// decodeError decodes an Error TLV. value is what follows the code.
func decodeError(code ErrorCode, value []byte) *Error {
	if code.hasAlignedValue() {
		return &Error{Code: code, Value: value[1:]}
	}
	return &Error{Code: code, Value: withoutPadding(value)}
}

func withoutPadding(b []byte) []byte {
	for len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return b
}

// Append appends the encoded message to b. It fails if the message is longer than MaxLen.
func (m Message) Append(b []byte) ([]byte, error) {
	start := len(b)
	b = append(b, Version, 0, magic>>8, magic&0xff)
	if m.Info {
		b = appendTLV(b, typeInfo, 0, 0)
	}
	if c := m.Connect; c != nil {
		addr := c.Server.Addr().As16()
		b = appendTLV(b, typeConnect, slices.Concat(binary.BigEndian.AppendUint16(nil, c.Server.Port()), addr[:], c.Options)...)
	}
	if m.ExtendedHeader != nil {
		b = appendTLV(b, typeExtendedHeader, slices.Concat([]byte{0, 0}, m.ExtendedHeader)...)
	}
	if m.Supported != nil {
		b = appendTLV(b, typeSupported, slices.Concat([]byte{0, 0}, m.Supported.Kinds)...)
	}
	if m.Cookie != nil {
		b = appendTLV(b, typeCookie, slices.Concat([]byte{0, 0}, m.Cookie)...)
	}
	if e := m.Error; e != nil {
		start := []byte{byte(e.Code)}
		if e.Code.hasAlignedValue() {
			start = append(start, 0)
		}
		b = appendTLV(b, typeError, slices.Concat(start, e.Value)...)
	}
	n := len(b) - start
	if n > MaxLen {
		return b[:start], fmt.Errorf("a Convert message of %d bytes: the limit is %d", n, MaxLen)
	}
	b[start+1] = byte(n / wordLen)
	return b, nil
}

// appendTLV appends a TLV, padded with zeros to whole words. If it is too long, its length wraps, and Append refuses
// the message.
func appendTLV(b []byte, kind byte, value ...byte) []byte {
	words := (2 + len(value) + wordLen - 1) / wordLen
	end := len(b) + words*wordLen
	b = append(b, kind, byte(words))
	b = append(b, value...)
	return append(b, make([]byte, end-len(b))...)
}
