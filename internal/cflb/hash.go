package cflb

import "math/bits"

// hash is the function H: MurmurHash3_x86_32 (A. Appleby, 2011), fed with words of 32 bits.
type hash struct {
	h uint32
	n uint32
}

func (h hash) word(k uint32) hash {
	k *= 0xcc9e2d51
	k = bits.RotateLeft32(k, 15)
	k *= 0x1b873593
	h.h = bits.RotateLeft32(h.h^k, 13)*5 + 0xe6546b64
	h.n += 4
	return h
}

func (h hash) words(all []uint32) hash {
	for _, w := range all {
		h = h.word(w)
	}
	return h
}

func (h hash) sum() uint32 {
	v := h.h ^ h.n
	v ^= v >> 16
	v *= 0x85ebca6b
	v ^= v >> 13
	v *= 0xc2b2ae35
	return v ^ v>>16
}
