package cflb

import (
	"crypto/sha256"
	"encoding/binary"
)

// Constants has a scheme in the form that a router's program decodes with. Its permutation is of 32 bits.
type Constants struct {
	Cipher Cipher
	Keys   []uint16 // of the rounds; Skip32: the bytes of the key
	Table  []uint8  // of Skip32's rounds, else nil
	Radix  uint32
	Powers []uint32 // of the radix, for each position of the path selector
}

// Constants returns the scheme's constants. It reports false if a program cannot decode it: FF1 is too slow.
func (s *Scheme) Constants() (c Constants, ok bool) {
	p, ok := s.permutation.(permutation32)
	if !ok {
		return c, false
	}
	c.Radix = uint32(s.radix)
	for _, power := range s.powers {
		c.Powers = append(c.Powers, uint32(power[0]))
	}
	switch b := p.block.(type) {
	case *speck:
		c.Cipher, c.Keys = Speck, b.RoundKeys()
	case *rc5:
		c.Cipher, c.Keys = RC5, b.RoundKeys()
	case *skip32:
		c.Cipher, c.Table = Skip32, skipjackF[:]
		for _, k := range b.key {
			c.Keys = append(c.Keys, uint16(k))
		}
	default:
		return c, false
	}
	return c, true
}

// RouterID returns the id of a router with a name.
func RouterID(name string) uint32 {
	sum := sha256.Sum256([]byte("dcol router\x00" + name))
	return binary.BigEndian.Uint32(sum[:])
}
