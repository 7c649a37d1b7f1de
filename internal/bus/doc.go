// Package bus carries messages between members and coordinators: members' requests, and coordinators' messages to one
// member or to all. It uses NATS, either embedded in the coordinator's process (Serve) or as an operator's cluster of
// nats-server processes. Authority.ServerConfig returns the configuration of the latter. Members and coordinators
// connect to both in the same way.
//
// The embedded server accepts connections only from its entrance (entrance.go), which handles TLS and limits strangers.
// NATS itself would let strangers use up all connections before they authenticate.
//
// Clients authenticate twice. TLS requires a certificate of the collective on both ends, and the client verifies the
// server's name. Then NATS requires a user JWT from the coordinator's Authority. The JWT names the member, expires with
// its certificate and contains its permissions. The client signs the server's nonce with its certificate's key. So a
// JWT is useless without the key.
//
//	subject              published by    received by
//	dcol.from.NAME.TOPIC member NAME     coordinators, one of them each
//	dcol.to.NAME.TOPIC   coordinators    member NAME
//	dcol.all.TOPIC       coordinators    every member
//	_INBOX.NAME.>        coordinators    member NAME: answers to its requests
//
// The servers let a member use only the subjects with its own name, so the sender in a subject is authentic. Members
// have no access to JetStream, in which coordinators store data that must not be lost (Bucket).
//
//	link.go                    a connection of any kind, restored whenever it ends
//	member.go coordinator.go   a member's and a coordinator's connection
//	system.go                  a coordinator's connection to an external cluster's system account
//	authority.go user.go       the keys, the JWTs and their revocation
//	subjects.go                the subjects, and what a member may choose in them
//	bucket.go                  values that coordinators store
//	serve.go serverlog.go      the embedded server and its log
//	entrance.go doors.go       its listener and members' connections
//	store.go                   its directory, and damage there
//	clusterconf.go             the configuration of an external server
package bus
