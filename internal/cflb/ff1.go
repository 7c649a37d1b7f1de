package cflb

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"math/big"
)

// ff1 is format-preserving encryption by AES: FF1 of NIST SP 800-38G, section 5.1. Numerals are big-endian.
type ff1 struct {
	block cipher.Block
	radix int64
	tweak []byte
}

const ff1Rounds = 10

// pass encrypts or decrypts n numerals, given as the number that they write.
func (f *ff1) pass(x *big.Int, n int, decrypt bool) *big.Int {
	u := n / 2
	v := n - u
	modulus := [2]*big.Int{f.power(u), f.power(v)}
	a, b := new(big.Int).DivMod(x, modulus[1], new(big.Int))
	for r := range ff1Rounds {
		i := r
		if decrypt {
			i = ff1Rounds - 1 - r
			a, b = b, a
		}
		y := f.round(i, b, n)
		if decrypt {
			y.Neg(y)
		}
		c := y.Mod(y.Add(y, a), modulus[i%2])
		a, b = b, c
		if decrypt {
			a, b = c, a
		}
	}
	return a.Add(a.Mul(a, modulus[1]), b)
}

func (f *ff1) power(n int) *big.Int {
	return new(big.Int).Exp(big.NewInt(f.radix), big.NewInt(int64(n)), nil)
}

// round returns the number y of step 6, which is added in a round.
func (f *ff1) round(i int, half *big.Int, n int) *big.Int {
	u := n / 2
	most := f.power(n - u)
	size := (most.Sub(most, big.NewInt(1)).BitLen() + 7) / 8
	d := 4*((size+3)/4) + 4
	const fixed = 16
	p := make([]byte, fixed, 64)
	copy(p, []byte{1, 2, 1, byte(f.radix >> 16), byte(f.radix >> 8), byte(f.radix), ff1Rounds, byte(u)})
	binary.BigEndian.PutUint32(p[8:], uint32(n))
	binary.BigEndian.PutUint32(p[12:], uint32(len(f.tweak)))
	p = append(p, f.tweak...)
	for (len(p)+1+size)%aes.BlockSize != 0 {
		p = append(p, 0)
	}
	p = append(p, byte(i))
	p = append(p, half.FillBytes(make([]byte, size))...)
	var mac [aes.BlockSize]byte
	for ; len(p) > 0; p = p[aes.BlockSize:] {
		for k := range mac {
			mac[k] ^= p[k]
		}
		f.block.Encrypt(mac[:], mac[:])
	}
	s := append(make([]byte, 0, 32), mac[:]...)
	for j := uint64(1); len(s) < d; j++ {
		next := mac
		binary.BigEndian.PutUint64(next[8:], binary.BigEndian.Uint64(mac[8:])^j)
		f.block.Encrypt(next[:], next[:])
		s = append(s, next[:]...)
	}
	return new(big.Int).SetBytes(s[:d])
}

// bitsFF1 permutes numbers of some bits by FF1.
type bitsFF1 struct {
	ff1
	width int
}

// minFF1 is the least number of bits: SP 800-38G asks for a million numbers.
const minFF1 = 20

func newBits(width int, key []byte) (Permutation, error) {
	if width < minFF1 || width > MaxBits {
		return nil, fmt.Errorf("cipher %q permutes %d to %d bits, not %d", FF1, minFF1, MaxBits, width)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("cipher %q: %w", FF1, err)
	}
	return &bitsFF1{ff1{block: block, radix: 2}, width}, nil
}

func (b *bitsFF1) Bits() int { return b.width }

func (b *bitsFF1) Forward(n Number) Number { return fromBig(b.pass(n.big(), b.width, false)) }

func (b *bitsFF1) Inverse(n Number) Number { return fromBig(b.pass(n.big(), b.width, true)) }

func (n Number) big() *big.Int {
	var b [24]byte
	for i, w := range n {
		binary.BigEndian.PutUint64(b[16-8*i:], w)
	}
	return new(big.Int).SetBytes(b[:])
}

func fromBig(x *big.Int) (n Number) {
	b := x.FillBytes(make([]byte, 24))
	for i := range n {
		n[i] = binary.BigEndian.Uint64(b[16-8*i:])
	}
	return n
}
