package cflb

import (
	"encoding/binary"
	"math/bits"
)

const (
	rc5Key    = 8
	rc5Rounds = 16
)

// rc5 is RC5-16/16/8 (R. Rivest, "The RC5 Encryption Algorithm", 1995): words of 16 bits, 16 rounds, a key of 8
// bytes. Blocks are little-endian.
type rc5 struct{ keys [2*rc5Rounds + 2]uint16 }

func newRC5(key []byte) *rc5 {
	const p16, q16 = 0xb7e1, 0x9e37
	var l [rc5Key / 2]uint16
	for i := range l {
		l[i] = binary.LittleEndian.Uint16(key[2*i:])
	}
	c := &rc5{}
	for i := range c.keys {
		c.keys[i] = p16 + uint16(i)*q16
	}
	var a, b uint16
	for n := range 3 * len(c.keys) {
		i, j := n%len(c.keys), n%len(l)
		a = bits.RotateLeft16(c.keys[i]+a+b, 3)
		c.keys[i] = a
		b = bits.RotateLeft16(l[j]+a+b, int(a+b)&15)
		l[j] = b
	}
	return c
}

func (c *rc5) Encrypt(v uint32) uint32 {
	v = bits.ReverseBytes32(v)
	a, b := uint16(v)+c.keys[0], uint16(v>>16)+c.keys[1]
	for i := 2; i < len(c.keys); i += 2 {
		a = bits.RotateLeft16(a^b, int(b&15)) + c.keys[i]
		b = bits.RotateLeft16(b^a, int(a&15)) + c.keys[i+1]
	}
	return bits.ReverseBytes32(uint32(b)<<16 | uint32(a))
}

func (c *rc5) Decrypt(v uint32) uint32 {
	v = bits.ReverseBytes32(v)
	a, b := uint16(v), uint16(v>>16)
	for i := len(c.keys) - 2; i >= 2; i -= 2 {
		b = bits.RotateLeft16(b-c.keys[i+1], -int(a&15)) ^ a
		a = bits.RotateLeft16(a-c.keys[i], -int(b&15)) ^ b
	}
	return bits.ReverseBytes32(uint32(b-c.keys[1])<<16 | uint32(a-c.keys[0]))
}

// RoundKeys returns the expanded key, for a router's program.
func (c *rc5) RoundKeys() []uint16 { return c.keys[:] }
