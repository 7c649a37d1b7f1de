package cflb

import (
	"encoding/binary"
	"math/bits"
)

const (
	speckKey    = 8
	speckRounds = 22
)

// speck is Speck32/64 (R. Beaulieu et al., "The SIMON and SPECK Families of Lightweight Block Ciphers", 2013).
type speck struct{ keys [speckRounds]uint16 }

// newSpeck expands a key: its words are written with the last one first, as in the paper's test vectors.
func newSpeck(key []byte) *speck {
	s := &speck{}
	k := binary.BigEndian.Uint16(key[6:])
	l := [3]uint16{binary.BigEndian.Uint16(key[4:]), binary.BigEndian.Uint16(key[2:]), binary.BigEndian.Uint16(key)}
	for i := range s.keys {
		s.keys[i] = k
		next := (k + bits.RotateLeft16(l[i%3], -7)) ^ uint16(i)
		l[i%3] = next
		k = bits.RotateLeft16(k, 2) ^ next
	}
	return s
}

func (s *speck) Encrypt(v uint32) uint32 {
	x, y := uint16(v>>16), uint16(v)
	for _, k := range s.keys {
		x = (bits.RotateLeft16(x, -7) + y) ^ k
		y = bits.RotateLeft16(y, 2) ^ x
	}
	return uint32(x)<<16 | uint32(y)
}

func (s *speck) Decrypt(v uint32) uint32 {
	x, y := uint16(v>>16), uint16(v)
	for i := speckRounds - 1; i >= 0; i-- {
		y = bits.RotateLeft16(y^x, -2)
		x = bits.RotateLeft16((x^s.keys[i])-y, 7)
	}
	return uint32(x)<<16 | uint32(y)
}

// RoundKeys returns the keys of the rounds, for a router's program.
func (s *speck) RoundKeys() []uint16 { return s.keys[:] }
