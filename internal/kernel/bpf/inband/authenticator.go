package inband

import (
	"encoding/binary"
	"math/bits"
)

// Authenticator returns the TSecr of the join's SYN with this sequence number and TSval. It is the low 32 bits of
// SipHash-2-4 under the join's key over the client's address, its port (0 if a NAT may rewrite it), the server's
// address and port, the sequence number and the TSval, all in network byte order. The eBPF programs have their own
// implementation (authenticator.h); this is the reference. The join must have an Auth.
func Authenticator(j Join, seq, tsval uint32) uint32 {
	client, server := j.Auth.Client.Unmap().As4(), j.Server.Unmap().As4()
	var port uint16
	if j.Auth.ClientPort {
		port = j.Local.Port()
	}
	m := append(make([]byte, 0, 20), client[:]...)
	m = binary.BigEndian.AppendUint16(m, port)
	m = append(m, server[:]...)
	m = binary.BigEndian.AppendUint16(m, j.Remote.Port())
	m = binary.BigEndian.AppendUint32(m, seq)
	m = binary.BigEndian.AppendUint32(m, tsval)
	return uint32(sipHash(j.Auth.Key, m))
}

// sipHash computes SipHash-2-4 (Aumasson and Bernstein: SipHash, a fast short-input PRF, 2012).
func sipHash(key Key, message []byte) uint64 {
	k := key.halves()
	v := sip{k[0] ^ 0x736f6d6570736575, k[1] ^ 0x646f72616e646f6d, k[0] ^ 0x6c7967656e657261, k[1] ^ 0x7465646279746573}
	last := [8]byte{7: byte(len(message))}
	for len(message) >= 8 {
		v.absorb(binary.LittleEndian.Uint64(message))
		message = message[8:]
	}
	copy(last[:7], message)
	v.absorb(binary.LittleEndian.Uint64(last[:]))
	v[2] ^= 0xff
	for range 4 {
		v.round()
	}
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}

type sip [4]uint64

func (v *sip) absorb(word uint64) {
	v[3] ^= word
	v.round()
	v.round()
	v[0] ^= word
}

func (v *sip) round() {
	v[0] += v[1]
	v[1] = bits.RotateLeft64(v[1], 13) ^ v[0]
	v[0] = bits.RotateLeft64(v[0], 32)
	v[2] += v[3]
	v[3] = bits.RotateLeft64(v[3], 16) ^ v[2]
	v[0] += v[3]
	v[3] = bits.RotateLeft64(v[3], 21) ^ v[0]
	v[2] += v[1]
	v[1] = bits.RotateLeft64(v[1], 17) ^ v[2]
	v[2] = bits.RotateLeft64(v[2], 32)
}
