// Package coordinator is the role that makes a collective one: it invites and enrols hosts, keeps the
// directory's store, tells all members what is new, and expels.
//
//	dcol init                  Init: keys of the collective in a directory, its first member
//	the agent                  Open, Run; its local API calls Invite, Expel, Members, Status
//	a host that joins    ----> desk (desk.go): HTTPS, as package enrol says
//	                             register.go decides, store.go makes it last, the authority signs
//	members, on the bus  ----> gatekeeper.go judges records, a bucket of the bus keeps them
//	                     <---- teller.go tells all what is new: records, trust, who cannot be reached
//
// In its directory: root/ is the collective's root, which may be carried away to a safe place; ca/ is the
// signer under it; old/NAME/ are authorities that signed before, without which what they have signed could not
// be revoked; bus/ the bus's keys and store; register is who was invited, who is a member and who was
// expelled; directory is a copy of the directory, from which a store that was lost is made anew.
//
// Whatever must not be lost is written before it is done: a token counts as used before its certificate is
// signed, and an expulsion is on the disk before the first list is. So each can be completed after a crash,
// by asking again or by itself.
//
// A program uses it so: Init once, with the request of the first member, whose files it then writes; Open with
// that member's identity, Run until it ends, Close. All other methods may be called from Open to Close. Members
// say and hear on the bus what package enrol lists (topics.go). A member that the bus does not let in any more
// renews: the answer is a new JWT, or the reason why there is none.
//
// It imports enrol, bus, strangers, collective and directory of ours; agent and the commands may import it.
package coordinator
