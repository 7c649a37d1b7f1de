// Package membership keeps this host a member: it keeps a connection to the coordinators, a copy of the directory, and
// roots and revocation lists; renews the certificate; publishes this host's record; tries for the coordinators whether
// others can be reached; and chooses the waypoints that this host uses.
//
//	                       the coordinators
//	  bus (connect.go)        |    |        HTTPS (renew.go, trust.go)
//	directory, trust, check --+    +-- renewed certificate, roots, lists
//	                          |    |
//	the agent:     Offer ->  Membership  -> Config.Choice
//	           Heard ->    one loop owns all
//
// Decisions are in files that do no I/O and are told the time: when to renew (renewal.go), when to publish
// (publication.go), which waypoints to choose (chooser.go). One loop (membership.go) owns their state; what waits runs in
// goroutines that post to the loop. Without a connection it works from the copy on disk.
package membership
