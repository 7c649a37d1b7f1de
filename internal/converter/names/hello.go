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
	// The header of a TLS record (RFC 8446, section 5.1) has its type, two bytes of a version, and two of its length.
	recordHeader    = 5
	recordHandshake = 22
	recordVersion   = 3 // the first byte; the second differs
)

// ServerName returns the name in the TLS ClientHello with which a connection begins (SNI, RFC 6066, section 3). b is what
// the client has said so far. more reports that there may be a name when the client has said more. With an encrypted
// ClientHello the name is that of the one who can decrypt it.
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

// recording is a connection whose other side has said something and listens to nothing.
type recording struct{ *bytes.Reader }

func (recording) Write(b []byte) (int, error)      { return len(b), nil }
func (recording) Close() error                     { return nil }
func (recording) LocalAddr() net.Addr              { return nil }
func (recording) RemoteAddr() net.Addr             { return nil }
func (recording) SetDeadline(time.Time) error      { return nil }
func (recording) SetReadDeadline(time.Time) error  { return nil }
func (recording) SetWriteDeadline(time.Time) error { return nil }
