// Package directory is what members know of each other: records that each member signs about itself, and
// the copy of all of them that every member holds.
//
//	a member                     the coordinators                      every member
//	Sign -> SignedRecord ------> Directory.Judge, a store, a number
//	                             Journal -> Batch (feed.go) ---------> Keeper -> Directory.Apply
//	                             Journal.Answer <--------------- Ask -   | verifies, takes or counts
//	                                                                     +-> a file (file.go)
//	                                                                     +-> Events, Members, Choose
//
// Coordinators only carry records. Everybody verifies each with the certificate in it, so that a
// coordinator can keep a record back and nothing more. What does not verify is passed over and counted.
//
// A Directory decides: it is told messages and the time, and does no I/O. A Keeper owns one in an agent:
// it asks for what is missing, tells of changes and keeps the file. Choose picks the waypoints that a
// client should have sessions with.
//
// It imports collective of ours; coordinator and agent may import it.
package directory
