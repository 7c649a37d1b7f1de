package report

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"net/netip"

	"github.com/detour-collective/dcol/internal/analyse/track"
)

// KeySize is the size of an Anonymiser's key.
const KeySize = 32

// Anonymiser replaces addresses. Two addresses that share a prefix of n bits also share one afterwards: Crypto-PAn
// (Xu, Fan, Ammar, Moon 2002).
type Anonymiser struct {
	block cipher.Block
	pad   [16]byte
	known map[netip.Addr]netip.Addr
}

// NewAnonymiser takes a key of KeySize bytes. The same key gives the same addresses. nil makes a random one.
func NewAnonymiser(key []byte) (*Anonymiser, error) {
	if key == nil {
		key = make([]byte, KeySize)
		if _, err := rand.Read(key); err != nil {
			return nil, err
		}
	}
	if len(key) != KeySize {
		return nil, fmt.Errorf("a key for anonymising has %d bytes, not %d", KeySize, len(key))
	}
	block, err := aes.NewCipher(key[:16])
	if err != nil {
		return nil, err
	}
	a := &Anonymiser{block: block, known: map[netip.Addr]netip.Addr{}}
	block.Encrypt(a.pad[:], key[16:])
	return a, nil
}

// Addr returns the address that stands for another.
func (a *Anonymiser) Addr(addr netip.Addr) netip.Addr {
	if !addr.IsValid() {
		return addr
	}
	if found, ok := a.known[addr]; ok {
		return found
	}
	bytes := addr.AsSlice()
	out := make([]byte, len(bytes))
	for bit := range len(bytes) * 8 {
		// The first bits of the address, and the rest of the pad.
		input := a.pad
		whole := bit / 8
		copy(input[:], bytes[:whole])
		if rest := bit % 8; rest > 0 {
			mask := byte(0xff) << (8 - rest)
			input[whole] = bytes[whole]&mask | a.pad[whole]&^mask
		}
		var result [16]byte
		a.block.Encrypt(result[:], input[:])
		out[whole] |= result[0] >> 7 << (7 - bit%8)
	}
	for i := range out {
		out[i] ^= bytes[i]
	}
	found, _ := netip.AddrFromSlice(out)
	if len(a.known) < maxAddresses {
		a.known[addr] = found
	}
	return found
}

// Record replaces the addresses of a connection, and removes its tokens, which the original capture has, too.
func (a *Anonymiser) Record(r *track.Record) {
	r.Tokens = nil
	for i := range r.Subflows {
		s := &r.Subflows[i]
		s.Client = netip.AddrPortFrom(a.Addr(s.Client.Addr()), s.Client.Port())
		s.Server = netip.AddrPortFrom(a.Addr(s.Server.Addr()), s.Server.Port())
	}
	for i := range r.Signals {
		if g := &r.Signals[i]; g.Address != nil {
			address := a.Addr(*g.Address)
			g.Address = &address
		}
	}
}
