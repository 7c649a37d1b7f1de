package cflb

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Permutation is the invertible function F between path selectors and controlled fields (section 5.4.3). A small
// change of its input must change half of the output, so that flows that nobody controls are spread evenly.
type Permutation interface {
	// Bits is the width of the numbers that are permuted.
	Bits() int
	Forward(Number) Number
	Inverse(Number) Number
}

// Block32 is a cipher with blocks of 32 bits.
type Block32 interface {
	Encrypt(uint32) uint32
	Decrypt(uint32) uint32
}

type permutation32 struct{ block Block32 }

func (permutation32) Bits() int { return 32 }

func (p permutation32) Forward(n Number) Number { return Number{uint64(p.block.Encrypt(uint32(n[0])))} }

func (p permutation32) Inverse(n Number) Number { return Number{uint64(p.block.Decrypt(uint32(n[0])))} }

// Cipher names a cipher.
type Cipher string

// Speck is the default for 32 bits: it has neither tables, as Skip32 has, nor rotations by data, as RC5 has, so it is
// the fastest of the three in a router's program. FF1 is for other widths.
const (
	Speck  Cipher = "speck32"
	Skip32 Cipher = "skip32"
	RC5    Cipher = "rc5"
	FF1    Cipher = "ff1"
)

// ciphers have the length of each cipher's key in bytes.
var ciphers = map[Cipher]int{Speck: speckKey, Skip32: skip32Key, RC5: rc5Key, FF1: 16}

// Ciphers lists the names of ciphers.
func Ciphers() []string {
	var names []string
	for _, c := range slices.Sorted(maps.Keys(ciphers)) {
		names = append(names, string(c))
	}
	return names
}

// NewPermutation returns a permutation of numbers of width bits. Its key is derived from the secret, which all routers
// and sources of a network share. Every cipher but FF1 needs a width of 32.
func NewPermutation(c Cipher, width int, secret []byte) (Permutation, error) {
	size, ok := ciphers[c]
	if !ok {
		return nil, fmt.Errorf("there is no cipher %q; there are %s", c, strings.Join(Ciphers(), ", "))
	}
	derived := sha256.Sum256(append([]byte("dcol cflb "+string(c)+"\x00"), secret...))
	key := derived[:size]
	if c == FF1 {
		return newBits(width, key)
	}
	if width != 32 {
		return nil, fmt.Errorf("cipher %q permutes 32 bits, not %d: use %q", c, width, FF1)
	}
	block, err := NewBlock32(c, key)
	if err != nil {
		return nil, err
	}
	return permutation32{block}, nil
}

// NewBlock32 returns a cipher with a key: 8 bytes for Speck, 10 for Skip32, 8 for RC5.
func NewBlock32(c Cipher, key []byte) (Block32, error) {
	if want, ok := ciphers[c]; !ok || c == FF1 || len(key) != want {
		return nil, fmt.Errorf("cipher %q with a key of %d bytes: it needs %d", c, len(key), want)
	}
	switch c {
	case Speck:
		return newSpeck(key), nil
	case Skip32:
		return newSkip32(key), nil
	}
	return newRC5(key), nil
}
