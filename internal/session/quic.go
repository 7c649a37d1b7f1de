package session

import (
	"net"
	"net/netip"
	"time"

	"github.com/quic-go/quic-go"
)

// alpn identifies the protocol in the TLS handshake. Its number changes with the framing or the
// start of a session; wire.Version covers the rest.
const alpn = "dcol/2"

const (
	// greetTimeout bounds the wait for the other side's first message.
	greetTimeout = 5 * time.Second
	// writeTimeout bounds the time for which the other side reads nothing while we write.
	writeTimeout = 5 * time.Second
	// A dead waypoint is detected after at most pingEvery plus silence.
	pingEvery = time.Second
	silence   = 3 * time.Second
	// idleTimeout ends a session whose client disappeared.
	idleTimeout = 15 * time.Second
	// handshakeTimeout bounds the wait for a waypoint's answer before the next try.
	handshakeTimeout = 3 * time.Second
	// connIDLength is longer than quic-go's default of 4 bytes, so that random datagrams match no
	// session.
	connIDLength = 12
)

// Application error codes with which a session is closed (RFC 9000, 20.2).
const (
	closeDone      quic.ApplicationErrorCode = 0
	closeStopping  quic.ApplicationErrorCode = 1
	closeRevoked   quic.ApplicationErrorCode = 2
	closeExpired   quic.ApplicationErrorCode = 3
	closeNewer     quic.ApplicationErrorCode = 4
	closeVersion   quic.ApplicationErrorCode = 5
	closeProtocol  quic.ApplicationErrorCode = 6
	closeSilent    quic.ApplicationErrorCode = 7
	closeSlow      quic.ApplicationErrorCode = 8
	closeNotMember quic.ApplicationErrorCode = 9
	// The client's signed statement is missing, or is for another session or time.
	closeUnattested quic.ApplicationErrorCode = 10
)

// quicConfig is the same for both sides except for streams, which only the client opens. The
// windows are small: messages are, and a member must not fill a waypoint's memory.
func quicConfig(incomingStreams int64) *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout:           handshakeTimeout,
		MaxIdleTimeout:                 idleTimeout,
		InitialStreamReceiveWindow:     64 << 10,
		MaxStreamReceiveWindow:         256 << 10,
		InitialConnectionReceiveWindow: 96 << 10,
		MaxConnectionReceiveWindow:     384 << 10,
		MaxIncomingStreams:             incomingStreams,
		MaxIncomingUniStreams:          -1,
		// The smallest size that QUIC requires of a path is enough. Probes for more would only be
		// counted as loss.
		InitialPacketSize:       1200,
		DisablePathMTUDiscovery: true,
	}
}

// addrPort converts a UDP address. An IPv4 address stays IPv4, even from a dual-stack socket.
func addrPort(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := u.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// closeLine closes the connection with a code for the other side.
func closeLine(conn *quic.Conn, code quic.ApplicationErrorCode, text string) {
	_ = conn.CloseWithError(code, text) // always nil
}
