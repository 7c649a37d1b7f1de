// Package membership keeps this host a member of its collective. It keeps a connection to the coordinators, and copies of the
// directory, roots and revocation lists. It renews the certificate, publishes this host's record, tests for the coordinators
// whether other members can be reached, and chooses the waypoints that this host uses.
//
//	                       the coordinators
//	  bus (connect.go)        |    |        HTTPS (renew.go, trust.go)
//	directory, trust, check --+    +-- renewed certificate, roots, lists
//	                          |    |
//	the agent:     Offer ->  Membership  -> Config.Choice
//	           Heard ->    one loop owns all
//
// Three files decide. They do no I/O and are told the time: renewal.go about the renewal of the certificate, publication.go
// about the record, and chooser.go about waypoints. One loop (membership.go) owns their state. Requests that wait run in
// goroutines that post their results to the loop. Without a connection, it works from the copy on disk.
package membership
