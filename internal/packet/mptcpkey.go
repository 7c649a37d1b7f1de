package packet

import (
	"crypto/hmac"
	"crypto/sha1" // MPTCP version 0 requires it
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// Key is the key of one end of an MPTCP connection.
type Key uint64

// digest returns the hash of the key: SHA-1 in version 0 (RFC 6824, 3.2), SHA-256 in version 1 (RFC 8684, 3.2).
func (k Key) digest(version uint8) []byte {
	h := newHash(version)()
	_ = binary.Write(h, binary.BigEndian, uint64(k))
	return h.Sum(nil)
}

func newHash(version uint8) func() hash.Hash {
	if version == 0 {
		return sha1.New
	}
	return sha256.New
}

// Token returns the token of the end that has the key.
func (k Key) Token(version uint8) uint32 { return binary.BigEndian.Uint32(k.digest(version)) }

// InitialSequence returns the initial data sequence number of the end that has the key (RFC 8684, 3.1). The first byte
// of data has the next number.
func (k Key) InitialSequence(version uint8) uint64 {
	d := k.digest(version)
	return binary.BigEndian.Uint64(d[len(d)-8:])
}

// JoinHMAC returns the whole HMAC that the sender puts into a join (RFC 8684, 3.2). JoinSYNACK has its first 8 bytes,
// JoinACK the first 20.
func JoinHMAC(version uint8, sender, receiver Key, senderNonce, receiverNonce uint32) []byte {
	message := binary.BigEndian.AppendUint32(nil, senderNonce)
	return keyed(version, sender, receiver, binary.BigEndian.AppendUint32(message, receiverNonce))
}

func keyed(version uint8, sender, receiver Key, message []byte) []byte {
	key := binary.BigEndian.AppendUint64(nil, uint64(sender))
	h := hmac.New(newHash(version), binary.BigEndian.AppendUint64(key, uint64(receiver)))
	h.Write(message)
	return h.Sum(nil)
}

// Authenticator returns the correct HMAC of the option (RFC 8684, 3.4.1). sender is the key of the end that announces
// the address.
func (a AddAddr) Authenticator(sender, receiver Key) (code [8]byte) {
	message := append([]byte{a.AddressID}, a.Address.AsSlice()...)
	message = binary.BigEndian.AppendUint16(message, a.Port) // 0 if there is none
	sum := keyed(1, sender, receiver, message)
	return [8]byte(sum[len(sum)-8:])
}

// DSSChecksum returns the checksum of a mapping with its data (RFC 8684, 3.3.1). sequence is the whole number even if
// the option has only its lower half.
func DSSChecksum(sequence uint64, subflow uint32, length uint16, data []byte) uint16 {
	var pseudo [16]byte
	binary.BigEndian.PutUint64(pseudo[:], sequence)
	binary.BigEndian.PutUint32(pseudo[8:], subflow)
	binary.BigEndian.PutUint16(pseudo[12:], length)
	return ^Sum(data, Sum(pseudo[:], 0))
}
