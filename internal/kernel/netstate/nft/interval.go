package nft

import (
	"bytes"
	"cmp"
	"slices"
)

// The kernel stores a range as two elements: its first key, and a bound, which is the key after its last. A range
// that ends with the largest key has no bound.

// bounds converts ranges to the kernel's elements.
func bounds(elements []Element) []Element {
	out := make([]Element, 0, 2*len(elements))
	for _, e := range elements {
		out = append(out, e)
		if behind, ok := next(e.Last); ok {
			out = append(out, Element{Key: behind, bound: true})
		}
	}
	return out
}

// ranges is the inverse of bounds, in the order of the keys.
func ranges(elements []Element) []Element {
	slices.SortFunc(elements, func(a, b Element) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		return cmp.Compare(rank(a), rank(b))
	})
	var out []Element
	open := false // the end of the last range has not come yet
	for _, e := range elements {
		if open {
			out[len(out)-1].Last = previous(e.Key)
		}
		if open = !e.bound; open {
			out = append(out, e)
		}
	}
	if open {
		out[len(out)-1].Last = bytes.Repeat([]byte{0xff}, len(out[len(out)-1].Key))
	}
	return out
}

// rank sorts the bound of a range before the start of the next range.
func rank(e Element) int {
	if e.bound {
		return 0
	}
	return 1
}

// next returns the key after the given one. ok is false for the largest key.
func next(key []byte) (after []byte, ok bool) {
	after = bytes.Clone(key)
	for i := len(after) - 1; i >= 0; i-- {
		if after[i]++; after[i] != 0 {
			return after, true
		}
	}
	return nil, false
}

func previous(key []byte) []byte {
	before := bytes.Clone(key)
	for i := len(before) - 1; i >= 0; i-- {
		if before[i]--; before[i] != 0xff {
			break
		}
	}
	return before
}
