package cflb

import (
	"crypto/aes"
	"encoding/hex"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestVectors compares the 32-bit ciphers with published vectors: Speck32/64 of its paper's appendix, Skip32 of
// skip32.c, RC5-16/16/8 of draft-krovetz-rc6-rc5-vectors.
func TestVectors(t *testing.T) {
	for _, c := range []struct {
		cipher        Cipher
		key           string
		plain, secret uint32
	}{
		{Speck, "1918111009080100", 0x6574694c, 0xa86842f2},
		{Skip32, "00998877665544332211", 0x33221100, 0x819d5f1f},
		{RC5, "0001020304050607", 0x00010203, 0x23a8d72e},
	} {
		key, _ := hex.DecodeString(c.key)
		block, err := NewBlock32(c.cipher, key)
		if err != nil {
			t.Fatal(err)
		}
		if got := block.Encrypt(c.plain); got != c.secret {
			t.Errorf("%s: %#x becomes %#x, not %#x", c.cipher, c.plain, got, c.secret)
		}
		if got := block.Decrypt(c.secret); got != c.plain {
			t.Errorf("%s: back to %#x, not %#x", c.cipher, got, c.plain)
		}
	}
}

// TestFF1Samples has samples 1 to 3 of NIST's examples for SP 800-38G.
func TestFF1Samples(t *testing.T) {
	key, _ := hex.DecodeString("2b7e151628aed2a6abf7158809cf4f3c")
	block, _ := aes.NewCipher(key)
	for _, c := range []struct {
		radix                int
		tweak, plain, secret string
	}{
		{10, "", "0123456789", "2433477484"},
		{10, "39383736353433323130", "0123456789", "6124200773"},
		{36, "3737373770717273373737", "0123456789abcdefghi", "a9tv40mll9kdu509eum"},
	} {
		tweak, _ := hex.DecodeString(c.tweak)
		f := ff1{block, int64(c.radix), tweak}
		plain, _ := new(big.Int).SetString(c.plain, c.radix)
		got := f.pass(plain, len(c.plain), false)
		if text := got.Text(c.radix); strings.TrimLeft(c.secret, "0") != text {
			t.Errorf("%s becomes %s, not %s", c.plain, text, c.secret)
		}
		if back := f.pass(got, len(c.plain), true); back.Cmp(plain) != 0 {
			t.Errorf("%s: back to %v", c.plain, back)
		}
	}
}

// TestMurmur has vectors of MurmurHash3_x86_32 with whole words.
func TestMurmur(t *testing.T) {
	for _, c := range []struct {
		seed  uint32
		words []uint32
		want  uint32
	}{
		{0, nil, 0},
		{1, nil, 0x514e28b7},
		{0, []uint32{0}, 0x2362f9de},
		{0, []uint32{0xffffffff}, 0x76293b50},
		{0, []uint32{0x87654321}, 0xf55b516b},
		{0x5082edee, []uint32{0x87654321}, 0x2362f9de},
	} {
		if got := (hash{h: c.seed}).words(c.words).sum(); got != c.want {
			t.Errorf("%x with seed %#x: %#x, not %#x", c.words, c.seed, got, c.want)
		}
	}
}

// kinds are the permutations that tests draw from.
var kinds = []struct {
	cipher Cipher
	width  int
}{{Speck, 32}, {Skip32, 32}, {RC5, 32}, {FF1, 20}, {FF1, 48}, {FF1, 52}, {FF1, 56}, {FF1, 160}}

func drawPermutation(t *rapid.T) Permutation {
	k := rapid.SampledFrom(kinds).Draw(t, "permutation")
	p, err := NewPermutation(k.cipher, k.width, []byte(rapid.String().Draw(t, "secret")))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func drawNumber(t *rapid.T, width int) Number {
	n := Number{rapid.Uint64().Draw(t, "low"), rapid.Uint64().Draw(t, "middle"), rapid.Uint64().Draw(t, "high")}
	return n.shiftLeft(192 - width).shiftRight(192 - width)
}

func TestPermutationsInvert(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPermutation(t)
		n := drawNumber(t, p.Bits())
		c := p.Forward(n)
		if !c.fits(p.Bits()) {
			t.Fatalf("%v becomes %v, which is wider than %d bits", n, c, p.Bits())
		}
		if back := p.Inverse(c); back != n {
			t.Fatalf("%v: back to %v", n, back)
		}
	})
}

// TestAvalanche: one bit of the input changes about half of the output.
func TestAvalanche(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, k := range kinds {
		p, err := NewPermutation(k.cipher, k.width, []byte("secret"))
		if err != nil {
			t.Fatal(err)
		}
		const runs = 400
		changed := 0
		for range runs {
			n := Number{random.Uint64(), random.Uint64(), random.Uint64()}
			n = n.shiftLeft(192 - k.width).shiftRight(192 - k.width)
			at := random.IntN(k.width)
			m := n
			m[at/64] ^= 1 << (at % 64)
			a, b := p.Inverse(n), p.Inverse(m)
			for i := range a {
				changed += bits.OnesCount64(a[i] ^ b[i])
			}
		}
		if share := float64(changed) / float64(runs*k.width); share < 0.46 || share > 0.54 {
			t.Errorf("%s of %d bits: one bit changes %.3f of the others", k.cipher, k.width, share)
		}
	}
}

func TestUnfitCiphers(t *testing.T) {
	for _, c := range []struct {
		cipher Cipher
		width  int
	}{{"des", 32}, {RC5, 48}, {FF1, 16}, {FF1, 161}} {
		if _, err := NewPermutation(c.cipher, c.width, nil); err == nil {
			t.Errorf("%s of %d bits is accepted", c.cipher, c.width)
		}
	}
}
