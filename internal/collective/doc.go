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
// # Where to find what
//
// An authority, its directory and what it signs:
//
//	ca.go signer.go successor.go    roots and signers
//	request.go issue.go ledger.go   requests, certificates, and the record of those
//	revoke.go                       revocation
//
// Who is a member (Trust)?
//
//	trust.go chain.go clock.go      the decision, chains of certificates, their times
//	roots.go lists.go               the content of ca.crt and ca.crl
//
// This host as a member (Identity):
//
//	identity.go credentials.go      its files
//	peer.go sign.go                 TLS, signatures
//	take.go renew.go                received updates, times of renewal
//
// Both use files.go (PEM), name.go (names) and errors.go.
//
// Of our packages it imports durable. session, agent and the commands may import it.
package collective
