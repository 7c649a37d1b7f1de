// Package wire is the language members speak inside a session: messages, and how they lie on a stream.
//
//	frame   = length(2 bytes, big endian, of what follows) type(1 byte) body
//	body    = a CBOR map (RFC 8949) with small integers as keys
//
// Growing it: a new kind of message gets a new type number, a new field a new key. Who does not know a
// key skips it; who does not know a type answers Malformed with the message's id (key 1 in every
// message that has one) and reads on. Only a broken frame ends a session. What changes the meaning of
// something that is there needs a new Version.
//
// It imports nothing of ours; session and waypoint may import it.
package wire
