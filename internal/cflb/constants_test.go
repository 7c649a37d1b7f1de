package cflb

import "testing"

// TestConstants has constants of all ciphers but FF1, which a router's program cannot compute.
func TestConstants(t *testing.T) {
	for cipher, keys := range map[Cipher]int{Speck: speckRounds, Skip32: skip32Key, RC5: 2*rc5Rounds + 2, FF1: 0} {
		p, err := NewPermutation(cipher, 32, []byte("secret"))
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(4, p)
		if err != nil {
			t.Fatal(err)
		}
		c, ok := s.Constants()
		if ok != (cipher != FF1) || len(c.Keys) != keys {
			t.Errorf("%s: %d keys, %t", cipher, len(c.Keys), ok)
		}
		if ok && (c.Radix != 4 || len(c.Powers) != s.Length() || c.Powers[2] != 16) {
			t.Errorf("%s: radix %d, powers %v", cipher, c.Radix, c.Powers)
		}
	}
	if RouterID("a") == RouterID("b") {
		t.Error("two routers have one id")
	}
}
