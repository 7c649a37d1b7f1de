// Package enrol is how a host becomes a member of a collective and stays one: what it and the coordinators
// say to each other, over HTTPS and on the bus, and its own half of it.
//
//	coordinator                                      the other host
//	Line.String  -- one line, by hand -------------> ParseLine
//	NewHandler   <-- POST /v1/join, with a request - Join     certificate, roots, lists, JWT of the bus
//	             <-- POST /v1/renew ---------------- Renew    the same, every day or two
//	             <-- GET /v1/trust ----------------- FetchTrust
//
// Nobody is trusted on first use. The line names the coordinators and has the hash of a root: a server must
// show a certificate in one of those names that ends in that root, and other members, whose certificates
// end there too, cannot take its place. Later the roots that the member has are what counts. FetchTrust asks
// for no proof at all, as roots and lists prove themselves.
//
// A join is proved by the line's secret, which counts once, and by the request, which is signed with the
// key that is to be the member's. A renewal is proved by that key alone, in the TLS handshake and in the
// request, so that a member may renew for a while after its certificate has ended.
//
// Every refusal is a *Refusal with a Reason and what to do about it. Every answer has the coordinator's
// time, because a wrong clock looks like many other faults.
//
// It imports collective of ours; membership, coordinator and agent may import it.
package enrol
