// Package bus carries messages between members and coordinators: members' requests, and coordinators' messages to one
// member or all. It uses NATS, embedded in the coordinator's process (Serve) or as a cluster of nats-server processes
// that an operator runs (Authority.ServerConfig returns their configuration). Members and coordinators connect to both
// in the same way.
//
// The embedded server takes connections only from its entrance (entrance.go), which does TLS and bounds strangers. NATS
// alone would let strangers occupy all connections before they authenticate.
//
// Clients authenticate twice. TLS needs a certificate of the collective on both ends, and the member verifies the
// server's name. Then NATS needs a user JWT, made by the coordinator's Authority: it names the member, ends with its
// certificate and holds its permissions. The client signs the server's nonce with its certificate's key. So a JWT alone
// is useless, as is a JWT with another member's certificate.
//
//	subject              published by    received by
//	dcol.from.NAME.TOPIC member NAME     coordinators, one of them each
//	dcol.to.NAME.TOPIC   coordinators    member NAME
//	dcol.all.TOPIC       coordinators    every member
//	_INBOX.NAME.>        coordinators    member NAME: answers to its requests
//
// The servers let a member use only the subjects with its own name, so the sender in a subject is authentic. Members have no
// access to JetStream, in which coordinators store data that must not be lost (Bucket).
package bus
