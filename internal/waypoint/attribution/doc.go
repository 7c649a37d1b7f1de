// Package attribution is a waypoint's record of who caused which traffic: JSON lines in files of bounded
// size, which somebody else can check.
//
//	member  --statement, signed-->  session  --allows-->  mapping, admission  -->  flow
//	line    --hash of the line before-->  ...  -->  head, signed by the waypoint
//
// Writing (Log; writer.go, chain.go, end.go) never waits for the disk and never stops forwarding; what
// could not be written is counted, reported and noted in the chain. Reading (Verify, Flows; reader.go)
// needs the files and a way to tell who a certificate is, nothing else, so that it works anywhere.
//
// The lines are a format that operators read for years, so fields are only ever added.
package attribution
