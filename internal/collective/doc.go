// Package collective holds who is who: the collective's certificate authority kept in files, members'
// ed25519 identities under it, and revocation.
//
// The authority's half (InitCA, OpenCA, Issue, Revoke) runs where the authority's key lies, as short
// commands. The member's half (Load) runs in every agent: it checks the identity when it starts, picks
// up replaced files, and answers who is at the other end of a TLS connection. It knows nothing of QUIC.
//
// It imports nothing of ours; session, agent and the commands may import it.
package collective
