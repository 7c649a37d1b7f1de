// Package coordinator is the coordinator role of a collective: it invites, admits and expels hosts, keeps the directory's
// store, and announces changes to all members. It composes its parts and runs them:
//
//	dcol init                  Init: the collective's keys in a directory, and its first member
//	the agent                  Open, Run; its local API calls Invite, Expel, Members, Status
//	a host that joins    ----> gate: HTTPS, with bounds for strangers
//	                             registrar: asks the register to decide, writes the decision down, signs
//	members, on the bus  ----> topics.go
//	                             records: judges members' records, keeps them in a bucket of the bus
//	                             reach: lets members try each other's addresses
//	                     <---- changes of the directory, roots and revocation lists, unreachable waypoints
//
// Which file answers which question?
//
//	coordinator.go init.go   how the parts are composed and run; a new collective
//	topics.go                what each message of a member does
//	trust.go                 how roots and revocation lists reach all members
//	expel.go enforced.go     how an expulsion is carried out; which waypoints have confirmed it
//	reserve.go status.go     disk space for expulsions; what the operator sees
//
// Its directory holds the collective's root (root/), which may be stored elsewhere; the signer under it (ca/); former
// signers (old/NAME/), which are needed to revoke what they have signed; the bus's keys and store (bus/); the register
// of invitations, members and expulsions (register); and a copy of the members' records (directory), from which a lost
// store is filled again.
//
// Decisions that must not be lost are written before they take effect. An invitation is marked as used before its
// certificate is signed. An expulsion is on the disk before the first revocation list. So both are completed after a
// crash.
//
// Call Init once, with the request of the first member; write that member's files; Open with its identity, Run, and
// Close. All other methods may be called between Open and Close, from any goroutine.
package coordinator
