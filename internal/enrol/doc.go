// Package enrol makes a host a member of a collective and renews its certificate. It defines the messages between
// members and coordinators, over HTTPS and on the bus, and has the host's half of the HTTPS exchange.
//
//	coordinator                                      the other host
//	Line.String  -- one line, by hand -------------> ParseLine
//	NewHandler   <-- POST /v1/join, with a request - Join     certificate, roots, lists, JWT of the bus
//	             <-- POST /v1/renew ---------------- Renew    the same, every day or two
//	             <-- GET /v1/trust ----------------- FetchTrust
//
// Nothing is trusted on first use. The line names the coordinators and has the hash of a root: a server must show a
// certificate with one of these names, under that root. Other members have certificates under it too, but with other
// names. Later, the member's own roots are used. FetchTrust authenticates nobody, as roots and lists are signed.
//
// To join, a host needs the line's secret, which can be used once, and a request signed with its new key. To renew, it
// needs only that key, in the TLS handshake and in the request: so it may renew for a while after its certificate has
// ended.
//
// Every refusal is a *Refusal with a Reason and what to do about it. Every answer has the coordinator's time, because a
// wrong clock looks like many other faults.
package enrol
