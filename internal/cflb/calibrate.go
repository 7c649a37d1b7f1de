package cflb

// Length returns the number of positions of a path selector: the largest L with radix^L ≤ 2^width (equation 5.4).
// The radix is at least 2.
func Length(radix, width int) int {
	var bound Number
	bound[width/64] = 1 << (width % 64)
	power := NumberOf(1)
	for l := 0; ; l++ {
		var ok bool
		if power, ok = power.mulAdd(uint64(radix), 0); !ok || bound.less(power) {
			return l
		}
	}
}

func (n Number) less(m Number) bool {
	for i := len(n) - 1; i >= 0; i-- {
		if n[i] != m[i] {
			return n[i] < m[i]
		}
	}
	return false
}

// BitsFor returns the least width of the controlled fields for a path selector of a radix and length (equation 5.12),
// or 0 if it exceeds MaxBits.
func BitsFor(radix, length int) int {
	for width := 1; width <= MaxBits; width++ {
		if Length(radix, width) >= length {
			return width
		}
	}
	return 0
}
