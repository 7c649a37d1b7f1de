package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// encoder appends netlink attributes.
type encoder struct{ b []byte }

func (e *encoder) bytes(kind uint16, value []byte) {
	at := e.begin(kind)
	e.b = append(e.b, value...)
	e.end(at)
}

func (e *encoder) string(kind uint16, value string) {
	at := e.begin(kind)
	e.b = append(append(e.b, value...), 0)
	e.end(at)
}

// u32 and u64 append numbers in big-endian order, as nftables requires.
func (e *encoder) u32(kind uint16, value uint32) {
	at := e.begin(kind)
	e.b = binary.BigEndian.AppendUint32(e.b, value)
	e.end(at)
}

func (e *encoder) u64(kind uint16, value uint64) {
	at := e.begin(kind)
	e.b = binary.BigEndian.AppendUint64(e.b, value)
	e.end(at)
}

func (e *encoder) nested(kind uint16, inside func()) {
	at := e.begin(kind | unix.NLA_F_NESTED)
	inside()
	e.end(at)
}

func (e *encoder) begin(kind uint16) int {
	at := len(e.b)
	e.b = binary.NativeEndian.AppendUint16(e.b, 0)
	e.b = binary.NativeEndian.AppendUint16(e.b, kind)
	return at
}

func (e *encoder) end(at int) {
	binary.NativeEndian.PutUint16(e.b[at:], uint16(len(e.b)-at))
	for len(e.b)%unix.NLA_ALIGNTO != 0 {
		e.b = append(e.b, 0)
	}
}

// appendUser appends one item of user data: type, length, value. Numbers are in the host's byte order; strings end with
// a NUL.
func appendUser(b []byte, kind byte, value []byte) []byte {
	return append(append(b, kind, byte(len(value))), value...)
}

func appendUserString(b []byte, kind byte, value string) []byte {
	return appendUser(b, kind, append([]byte(value), 0))
}

func appendUserU32(b []byte, kind byte, value uint32) []byte {
	return appendUser(b, kind, binary.NativeEndian.AppendUint32(nil, value))
}

// From nft: include/expression.h, src/payload.c, include/proto.h.
const (
	userTypeOfExpr = 0
	userTypeOfData = 1
	exprPayload    = 7
	exprConcat     = 13

	userPayloadDesc   = 0
	userPayloadType   = 1
	userPayloadBase   = 2
	userPayloadOffset = 3
	userPayloadLen    = 4

	transportBase = 3

	// Protocols, and fields of their headers.
	protoUDP = 6
	udpSport = 1
	protoIP  = 12
	ipSaddr  = 11
	protoIP6 = 13
	ip6Saddr = 8
)

// payloadUser returns the user data by which nft knows that a part of a set's key is bits of a packet without a name.
func payloadUser(base, offset, size uint32) []byte {
	var data []byte
	data = appendUserU32(data, userPayloadDesc, 0)
	data = appendUserU32(data, userPayloadType, 0)
	data = appendUserU32(data, userPayloadBase, base)
	data = appendUserU32(data, userPayloadOffset, offset)
	data = appendUserU32(data, userPayloadLen, size)
	return data
}

// fieldUser is payloadUser for a named field of a header.
func fieldUser(proto, field uint32) []byte {
	return appendUserU32(appendUserU32(nil, userPayloadDesc, proto), userPayloadType, field)
}

// typeOfUser returns the user data by which nft knows the expressions that declare a set's key (typeof).
func typeOfUser(key []Type) []byte {
	payload := func(t Type) []byte {
		return appendUser(appendUserU32(nil, userTypeOfExpr, exprPayload), userTypeOfData, t.likeUser)
	}
	if len(key) == 1 {
		return payload(key[0])
	}
	var parts []byte
	for i, t := range key {
		parts = appendUser(parts, byte(i), payload(t))
	}
	return appendUser(appendUserU32(nil, userTypeOfExpr, exprConcat), userTypeOfData, parts)
}

func userString(b []byte, kind byte) string {
	for len(b) >= 2 {
		size := int(b[1])
		if len(b) < 2+size {
			return ""
		}
		if b[0] == kind && size > 0 {
			return string(b[2 : 2+size-1])
		}
		b = b[2+size:]
	}
	return ""
}
