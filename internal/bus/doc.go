// Package bus carries the collective's messages: what members ask of coordinators, and what
// coordinators tell one member or all of them. The engine is NATS, embedded in the coordinator's process
// (Serve) or a cluster of nats-server processes that somebody runs (Authority.ServerConfig writes their
// configuration). Members and coordinators connect in the same way to both.
//
// The embedded server takes connections from nobody but its entrance (entrance.go), which bounds strangers and does
// TLS: NATS alone would let strangers take all places before they show who they are.
//
// Who is who is decided twice. TLS wants a certificate of the collective from both ends, and the member
// wants the server's name. Then NATS wants a user JWT, made by the coordinator's Authority: it names the
// member, ends with its certificate and holds its permissions; whoever shows it signs the server's nonce
// with the member's own certificate key. So a JWT alone is worth nothing, and a JWT with another
// member's certificate is refused for want of the key.
//
//	subject              published by    received by
//	dcol.from.NAME.TOPIC member NAME     coordinators, one of them each
//	dcol.to.NAME.TOPIC   coordinators    member NAME
//	dcol.all.TOPIC       coordinators    every member
//	_INBOX.NAME.>        coordinators    member NAME: answers to what it asked
//
// The servers hold every member to its row, so that the sender in a subject is proven. Members have no
// access to JetStream; coordinators keep what must not be lost in it (Bucket).
//
// It imports collective and strangers of ours; coordinator and agent may import it.
package bus
