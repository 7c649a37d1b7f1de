// Package nat finds out which kind of NAT is between a host's UDP port and the Internet, and so how others can reach
// the port: directly, after both ends have sent (hole punching), or not at all. It asks other members, so no server
// outside the collective is needed. Its STUN packets use the sessions' own UDP port, so the result is about the port in
// use.
//
//	examine.go found.go       collecting evidence; conclusions from it, without I/O
//	prober.go                 asking members for this host's external address, and answering them
//	answers.go                limits of these answers
//	witnesses.go addresses.go addresses at which members saw this host
//	punch.go                  hole punching
//	lend.go                   a Prober for a socket that gets another use later
//	stun/                     the packets
//	portmap/                  asking routers to open ports
package nat
