// Package attribution writes and verifies a waypoint's log of which member caused which traffic: JSON lines in files
// of limited size.
//
//	member  --signed statement-->  session  --allows-->  mapping, admission  -->  flow
//	line    --hash of the previous line-->  ...  -->  head, signed by the waypoint
//
// Writing (Log; writer.go, chain.go, end.go) never waits for the disk and never stops forwarding. Entries that could
// not be written are counted, reported and recorded in the chain. Reading (Verify, Flows; reader.go) needs only the
// files and a way to identify the owner of a certificate, so it works on any host.
//
// Operators keep logs for years, so later versions only add fields to the lines.
package attribution
