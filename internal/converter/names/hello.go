package names

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"
)

const (
	// mostHello bounds the bytes in which a server name is looked for. ClientHellos have one to four kilobytes.
	mostHello = 16 << 10
	// The header of a TLS record (RFC 8446, section 5.1) has a type, two bytes of version, and two bytes of length.
	recordHeader    = 5
	recordHandshake = 22
	recordVersion   = 3 // the first byte; the second differs
)

// ServerName returns the server's name in the TLS ClientHello at the start of a connection (SNI, RFC 6066, section 3).
// b has the client's bytes so far. more reports whether further bytes may complete the name. If the ClientHello is
// encrypted, the name is that of the host that can decrypt it.
func ServerName(b []byte) (name string, more bool) {
	for i, want := range []byte{recordHandshake, recordVersion} {
		if i < len(b) && b[i] != want {
			return "", false
		}
	}
	more = len(b) < mostHello
	if len(b) < recordHeader || len(b) < recordHeader+int(binary.BigEndian.Uint16(b[recordHeader-2:])) {
		return "", more
	}
	seen := false
	server := tls.Server(&recording{bytes.NewReader(b)}, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name, seen = hello.ServerName, true
			return nil, errSeen
		},
	})
	err := server.Handshake()
	return name, more && !seen && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF))
}

var errSeen = errors.New("the ClientHello has been read")

// recording is a connection from which the given bytes can be read. It discards what is written.
type recording struct{ *bytes.Reader }

func (recording) Write(b []byte) (int, error)      { return len(b), nil }
func (recording) Close() error                     { return nil }
func (recording) LocalAddr() net.Addr              { return nil }
func (recording) RemoteAddr() net.Addr             { return nil }
func (recording) SetDeadline(time.Time) error      { return nil }
func (recording) SetReadDeadline(time.Time) error  { return nil }
func (recording) SetWriteDeadline(time.Time) error { return nil }
