// Package collective implements the identities of a collective: its certificate authorities, in files, its
// members' ed25519 certificates, and revocation.
//
// A root (InitCA) is valid for ten years. It signs members itself, or creates signers (NewSigner), which are
// valid for a year and sign members on a host that is on the network, so that the root's key need not be
// there. Members' certificates are then valid for days. Both kinds of authority are a CA: a directory and
// short commands, without a process.
//
// To verify others, a member needs two files: the roots (ca.crt), and a revocation list of each authority
// (ca.crl). A Trust holds their content and decides, without I/O, who is a member. Roots change by
// statements that an earlier root has signed (roots.go).
//
// The member's half (Load) runs in every agent. An Identity follows its files, accepts verified updates from
// the coordinator, and returns the member at the other end of a TLS connection. It does not depend on QUIC.
//
// Of our packages it imports durable. session, agent and the commands may import it.
package collective
