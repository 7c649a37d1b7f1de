// Package collective holds who is who: the collective's certificate authorities kept in files, members'
// ed25519 identities under them, and revocation.
//
// A root (InitCA) signs for ten years. It may sign members itself, or make signers (NewSigner) of a year
// that do so on a host that is on the network, so that the root's key need not be. Members' certificates
// then last days. Both kinds of authority are a CA: a directory, short commands, no process.
//
// What every member needs to know others is two files: the roots (ca.crt), and one revocation list of
// each authority (ca.crl). Trust is one reading of them and decides, without I/O, who is a member. Roots
// change by statements that a root known before has signed (roots.go).
//
// The member's half (Load) runs in every agent: an Identity follows its files, takes what the coordinator
// sends after checking it, and answers who is at the other end of a TLS connection. It knows nothing of
// QUIC.
//
// It imports durable of ours; session, agent and the commands may import it.
package collective
