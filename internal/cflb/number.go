package cflb

import "math/bits"

// MaxBits is the largest width of the controlled fields: both ports and half of both addresses of IPv6.
const MaxBits = 160

// Number is an unsigned number of up to 192 bits: a path selector, or the controlled fields of a packet. Its first
// element has the lowest bits.
type Number [3]uint64

// NumberOf returns a small number.
func NumberOf(n uint64) Number { return Number{n} }

// mulAdd returns n × m + a, and reports whether it fits.
func (n Number) mulAdd(m, a uint64) (Number, bool) {
	carry := a
	for i := range n {
		hi, lo := bits.Mul64(n[i], m)
		var c uint64
		n[i], c = bits.Add64(lo, carry, 0)
		carry = hi + c
	}
	return n, carry == 0
}

func (n Number) add(m Number) Number {
	var c uint64
	for i := range n {
		n[i], c = bits.Add64(n[i], m[i], c)
	}
	return n
}

// divMod returns the quotient and the remainder of a division by a small number.
func (n Number) divMod(d uint64) (Number, uint64) {
	var rest uint64
	for i := len(n) - 1; i >= 0; i-- {
		n[i], rest = bits.Div64(rest, n[i], d)
	}
	return n, rest
}

// fits reports whether the number has at most width bits.
func (n Number) fits(width int) bool {
	for i, w := range n {
		if bits.Len64(w) > max(0, width-64*i) {
			return false
		}
	}
	return true
}

func (n Number) shiftLeft(by int) Number {
	for ; by >= 64; by -= 64 {
		n = Number{0, n[0], n[1]}
	}
	if by == 0 {
		return n
	}
	return Number{n[0] << by, n[1]<<by | n[0]>>(64-by), n[2]<<by | n[1]>>(64-by)}
}

func (n Number) shiftRight(by int) Number {
	for ; by >= 64; by -= 64 {
		n = Number{n[1], n[2], 0}
	}
	if by == 0 {
		return n
	}
	return Number{n[0]>>by | n[1]<<(64-by), n[1]>>by | n[2]<<(64-by), n[2] >> by}
}

// join appends the low bits of v to the number's lower end.
func (n Number) join(v uint64, width int) Number {
	n = n.shiftLeft(width)
	n[0] |= v & lowBits(width)
	return n
}

// split returns the number's low bits and the rest.
func (n Number) split(width int) (rest Number, v uint64) {
	return n.shiftRight(width), n[0] & lowBits(width)
}

func lowBits(width int) uint64 {
	if width == 64 {
		return ^uint64(0)
	}
	return 1<<width - 1
}
