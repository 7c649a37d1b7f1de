// Package ask is the conversation between the programs of this host and the relay that leads connections to
// converters. The supervisor of `dcol run` asks the relay on a local socket (unix, SOCK_SEQPACKET) whether a
// connection to a server shall go through a converter, and how. [Client] is the supervisor's side and [Serve] the
// relay's.
//
// A program waits in connect() for each answer. So a client gives the relay little time, and every failure means
// that the program connects directly, as without dcol.
package ask

import (
	"net/netip"
	"time"
)

// SocketName is the name of the relay's socket in the agent's run directory.
const SocketName = "relay.sock"

// Answer says how to connect to a server.
type Answer struct {
	// Convert is nil if the connection shall go directly to the server.
	Convert *Convert
	// KeepFor is how long a direct answer holds for all connections to the server. It is whole milliseconds.
	// Connections through a converter are asked for one by one.
	KeepFor time.Duration
	// Plain reports that the server is known to speak no MPTCP. It is for direct answers.
	Plain bool
}

// Convert names the two ways to a converter. A socket that may wait for its connection is connected to Converter and
// sends a Convert message (RFC 8803). Any other is connected to the relay, which is told its server with
// [Client.Expect] before that.
type Convert struct {
	// Converter is the converter to connect to; zero: only the relay may connect to it.
	Converter netip.AddrPort
	Cookie    []byte // of the Convert message, at most MaxCookie bytes
	FastOpen  bool   // the message may be in the SYN; see [Handler.FastOpened]
	// Relay4 and Relay6 are the relay's listeners on 127.0.0.1 and ::1, for connections to servers of the same family.
	Relay4, Relay6 netip.AddrPort
	// Namespace is the cookie of the network namespace (SO_NETNS_COOKIE) in which the relay listens. Sockets of
	// other namespaces do not reach it. Serve fills it in.
	Namespace uint64
}

// MaxCookie is the length of the longest cookie in bytes.
const MaxCookie = 64

// MaxProgram is the length of the longest path of a program in bytes.
const MaxProgram = 1024

// FastOpen is the outcome of a connection to a converter that was to have its Convert message in the SYN.
type FastOpen byte

// The ways in which it can go. If the SYN only asked for a cookie, and arrived, nothing is reported.
const (
	FastOpenWorked FastOpen = 1 // the SYN's data was acknowledged, and the message answered
	FastOpenSilent FastOpen = 2 // it was acknowledged, and no answer came, or nothing came at all
	FastOpenFailed FastOpen = 3 // the SYN was lost or its data not acknowledged, or the connection fell back to TCP
)

// Process is a process that asks, as the kernel names it.
type Process struct {
	PID int32
	UID uint32
}

// Handler is the relay's part. Its methods are called at the same time by several goroutines, and must not wait.
type Handler interface {
	// Ask returns how to connect to a server. A connection to the relay succeeds before the server is reached, so
	// programs do not try the server's other addresses if the relay does not reach this one.
	Ask(p Process, server netip.AddrPort) Answer
	// Expect announces a connection to the relay from a local address, and for which server it is. It reports
	// whether the relay will serve it. The connection is made at once. [Expectations] helps to remember it; its
	// addresses are compared as they are, so IPv4 must not be IPv4-mapped.
	Expect(p Process, local, server netip.AddrPort) bool
	// Excludes reports whether connections of a program go directly, whatever the server. It is named by the path of
	// its executable.
	Excludes(p Process, program string) bool
	// Learned reports what a converter said of a server.
	Learned(p Process, server netip.AddrPort, mptcp bool)
	// Suspect reports that a converter may have failed: it did not answer within a program's own limit, which was short.
	Suspect(p Process, converter netip.AddrPort)
	// Unserved reports that a converter could not be reached, or did not answer the Convert message for a server in time. That
	// may be the fault of the program's own firewall, or the server's: a converter answers when it has reached the server. So it
	// must not take the converter from others.
	Unserved(p Process, converter, server netip.AddrPort)
	// Refused reports that a converter was reached, and refused to connect to a server.
	Refused(p Process, converter, server netip.AddrPort)
	// Carried reports that a converter has connected to a server, how long its own handshake took, and how long its
	// answer; zero, if that does not show how far the server is because the message was in the SYN.
	Carried(p Process, converter, server netip.AddrPort, handshake, answer time.Duration)
	// FastOpened reports how a connection to a converter went for which Convert.FastOpen was set.
	FastOpened(p Process, converter netip.AddrPort, how FastOpen)
}
