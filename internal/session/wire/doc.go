// Package wire implements the messages inside a session and their encoding on a stream.
//
//	frame   = length(2 bytes, big endian, of what follows) type(1 byte) body
//	body    = a CBOR map (RFC 8949) with small integers as keys
//
// A new kind of message gets a new type number, a new field a new key. Unknown keys are ignored. A
// message of unknown type is answered with Malformed and the message's id (key 1 in every message
// that has one), and reading continues. Only a broken frame ends a session. A change in the meaning
// of an existing message requires a new Version.
package wire
