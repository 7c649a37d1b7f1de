// Package membership is what a member does to stay one: it keeps a connection to the coordinators, the
// copy of the directory and what it believes, renews its certificate, says of itself what it offers, tries
// for the coordinators whether others can be reached, and chooses the waypoints that this host uses.
//
//	                       the coordinators
//	  bus (connect.go)        |    |        HTTPS (renew.go, trust.go)
//	directory, trust, check --+    +-- renewed certificate, roots, lists
//	                          |    |
//	the agent:     Offer ->  Membership  -> Config.Choice
//	           Heard ->    one loop owns all
//
// What is decided is in files that do no I/O and are told the time: when to renew (renewal.go), when to
// publish (publication.go), whom to choose (chooser.go). One loop (membership.go) owns their state; what
// waits runs in goroutines that post to it. With nobody there it works from the copy on disk.
//
// It imports enrol, bus and collective of ours, and nothing that touches the kernel; agent may import it.
package membership
