// Package directory implements the directory of members: records that each member signs about itself, and every
// member's copy of all records.
//
//	a member                     the coordinators                      every member
//	Sign -> SignedRecord ------> Directory.Judge, a store, a number
//	                             Journal -> Batch (feed.go) ---------> Keeper -> Directory.Apply
//	                             Journal.Answer <--------------- Ask -   | verifies, applies or counts
//	                                                                     +-> a file (file.go)
//	                                                                     +-> Events, Members, Choose
//
// Coordinators only forward records. Every member verifies each with the certificate in it, so a coordinator can
// withhold a record but not forge one. Records that fail verification are skipped and counted.
//
// A Directory decides: it gets messages and the time, and does no I/O. In an agent, a Keeper owns it: it asks for
// missing changes, reports changes and writes the file. Choose returns the waypoints with which a client should
// have sessions.
//
// Of our packages it imports collective; coordinator and agent may import it.
package directory
