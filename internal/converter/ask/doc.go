// Package ask is the protocol between `dcol run` and the relay that leads connections to converters. The supervisor of
// `dcol run` asks the relay on a local socket (unix, SOCK_SEQPACKET) whether a connection to a server should go through
// a converter, and how.
//
// A program waits in connect() for each answer. So a client gives the relay little time, and every failure means that
// the program connects directly, as without dcol.
//
//	client.go        Client, the supervisor's side
//	server.go        Listen and Serve, the relay's side; Handler is what the relay implements
//	message.go       the packets
//	expectations.go  for the relay: which announced connection is for which server
package ask

import (
	"net/netip"
	"time"
)

// SocketName is the name of the relay's socket in the agent's run directory.
const SocketName = "relay.sock"

// Answer says how to connect to a server.
type Answer struct {
	// Convert is nil if the connection should go directly to the server.
	Convert *Convert
	// KeepFor is the time for which a direct answer holds for all connections to the server, in whole milliseconds. An
	// answer with Convert holds for one connection.
	KeepFor time.Duration
	// Plain reports that the server is known to speak no MPTCP. It is only set in direct answers.
	Plain bool
}

// Convert names the two ways to a converter. A blocking socket is connected to Converter and sends a Convert message
// (RFC 8803). A non-blocking one is connected to the relay, after [Client.Expect] has told the relay its server.
type Convert struct {
	// Converter is the converter to connect to. If only the relay may connect to it, it is the relay, which then answers as a
	// converter does. Relays of older versions leave it zero then.
	Converter netip.AddrPort
	Cookie    []byte // for the Convert message, at most MaxCookie bytes
	FastOpen  bool   // the message may be in the SYN; see [Handler.FastOpened]
	// Relay4 and Relay6 are the relay's listeners on 127.0.0.1 and ::1, for connections to servers of the same family.
	Relay4, Relay6 netip.AddrPort
	// Namespace is the cookie of the network namespace (SO_NETNS_COOKIE) in which the relay listens. Sockets of other
	// namespaces do not reach the relay. Serve sets it.
	Namespace uint64
}

// MaxCookie is the length of the longest cookie in bytes.
const MaxCookie = 64

// MaxProgram is the length of the longest path of a program in bytes.
const MaxProgram = 1024

// FastOpen is the outcome of a connection to a converter that was to have its Convert message in the SYN.
type FastOpen byte

// The outcomes. If the SYN only asked for a cookie, and arrived, nothing is reported.
const (
	FastOpenWorked FastOpen = 1 // the SYN's data was acknowledged, and the message answered
	FastOpenSilent FastOpen = 2 // it was acknowledged, and no answer came, or nothing came at all
	FastOpenFailed FastOpen = 3 // the SYN was lost or its data not acknowledged, or the connection fell back to TCP
)

// Process identifies the process that asks. The kernel provides it.
type Process struct {
	PID int32
	UID uint32
}

// Handler answers a client's questions and takes its reports. Several goroutines call its methods, which must not block.
type Handler interface {
	// Ask returns how to connect to a server. A connection to the relay succeeds before the server is reached. So if
	// the relay does not reach this address, programs do not try the server's other addresses.
	Ask(p Process, server netip.AddrPort) Answer
	// Expect announces a connection to the relay from a local address, and its server. It reports whether the relay
	// will serve it. The connection follows at once. [Expectations] can remember it. That compares addresses without
	// conversion, so IPv4 must not be IPv4-mapped.
	Expect(p Process, local, server netip.AddrPort) bool
	// Excludes reports whether all connections of a program go directly. The program is named by the path of
	// its executable.
	Excludes(p Process, program string) bool
	// Learned reports whether a server speaks MPTCP, according to a converter.
	Learned(p Process, server netip.AddrPort, mptcp bool)
	// Suspect reports that a converter may have failed: it did not answer within a program's own limit, which was too
	// short to be sure.
	Suspect(p Process, converter netip.AddrPort)
	// Unserved reports that a converter could not be reached, or did not answer the Convert message for a server in
	// time. The cause may be the program's own firewall, or the server, because a converter answers when it has reached
	// the server. So other programs and servers must be able to use the converter still.
	Unserved(p Process, converter, server netip.AddrPort)
	// Refused reports that a converter was reached, and refused to connect to a server.
	Refused(p Process, converter, server netip.AddrPort)
	// Carried reports that a converter has connected to a server, and the times that the handshake with the converter and
	// its answer took. answer is 0 if the message was in the SYN, because it then does not show how far the server is. local
	// is this host's end of the connection to the converter; clients of older versions leave it zero.
	Carried(p Process, local, converter, server netip.AddrPort, handshake, answer time.Duration)
	// FastOpened reports the outcome of a connection to a converter for which Convert.FastOpen was set.
	FastOpened(p Process, converter netip.AddrPort, how FastOpen)
}
