// Package cookie seals and opens cookies, which prove to a converter that a connection is a member's. The agent puts a
// cookie into each grant, and the client sends it in its Convert message (RFC 8803, section 6.2.7). The converter needs
// only the key to check a cookie, so it continues to serve members while its agent restarts.
package cookie

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/netip"
	"time"
)

// Len is the length of a cookie in bytes: the mark, the time of expiry and the authenticator.
const Len = 4 + 4 + authenticatorLen

const authenticatorLen = 16

// Key is the secret that an agent shares with its converter.
type Key [32]byte

// Claim is the content of a cookie.
type Claim struct {
	Mark    uint32     // of the connections that the converter opens for the member
	Client  netip.Addr // the only address from which the cookie is valid
	Expires time.Time  // in whole seconds
}

var (
	// ErrForged means that the cookie was not sealed with this key for this client.
	ErrForged = errors.New("the cookie is not one that this converter gave to this address")
	// ErrExpired means that the client has to ask for a new cookie.
	ErrExpired = errors.New("the cookie has expired")
)

// Seal returns a cookie with the claim.
func (k Key) Seal(c Claim) []byte {
	b := make([]byte, 0, Len)
	b = binary.BigEndian.AppendUint32(b, c.Mark)
	b = binary.BigEndian.AppendUint32(b, uint32(c.Expires.Unix()))
	return append(b, k.authenticator(b, c.Client)...)
}

// Open returns the mark in a cookie that client sent. Padding after the cookie is ignored.
func (k Key) Open(b []byte, client netip.Addr, now time.Time) (mark uint32, err error) {
	if len(b) < Len || !hmac.Equal(k.authenticator(b[:8], client), b[8:Len]) {
		return 0, ErrForged
	}
	if now.Unix() >= int64(binary.BigEndian.Uint32(b[4:])) {
		return 0, ErrExpired
	}
	return binary.BigEndian.Uint32(b), nil
}

func (k Key) authenticator(content []byte, client netip.Addr) []byte {
	h := hmac.New(sha256.New, k[:])
	h.Write(content)
	addr := client.Unmap().WithZone("").As16()
	h.Write(addr[:])
	return h.Sum(nil)[:authenticatorLen]
}
