package session

import (
	"net"
	"net/netip"
	"time"

	"github.com/quic-go/quic-go"
)

// alpn names the protocol in the TLS handshake. The number changes when the framing or the way a
// session begins changes; wire.Version covers the rest.
const alpn = "dcol/2"

const (
	// greetTimeout is how long the first message of the other side may take.
	greetTimeout = 5 * time.Second
	// writeTimeout is how long the other side may not read what we write.
	writeTimeout = 5 * time.Second
	// pingEvery and silence bound how late a dead waypoint is noticed: the sum, at most.
	pingEvery = time.Second
	silence   = 3 * time.Second
	// idleTimeout ends a session whose client is gone without a word.
	idleTimeout = 15 * time.Second
	// handshakeTimeout is how long a waypoint may not answer before the next try.
	handshakeTimeout = 3 * time.Second
	// connIDLength is longer than quic-go's own 4 bytes, so that random datagrams meet no session.
	connIDLength = 12
)

// Why a session was closed, as the other side is told (application error codes, RFC 9000, 20.2).
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
	// The client did not sign that the session is its own, or for another session or time.
	closeUnattested quic.ApplicationErrorCode = 10
)

// quicConfig is the same for both sides but for streams, which only the client opens. The windows are
// small: messages are, and a member must not fill a waypoint's memory.
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
		// The least every path carries that QUIC can use at all, and all we need: probes for more
		// would only be counted as loss.
		InitialPacketSize:       1200,
		DisablePathMTUDiscovery: true,
	}
}

// addrPort is a UDP address as we write it: IPv4 is IPv4 also on a socket for both families.
func addrPort(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := u.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// closeLine tells the other side, if it still listens.
func closeLine(conn *quic.Conn, code quic.ApplicationErrorCode, text string) {
	_ = conn.CloseWithError(code, text) // always nil
}
