package bench

import (
	"slices"
	"testing"
)

// Pages are the same in every run, and differ.
func TestPages(t *testing.T) {
	var pages [][]int64
	for seed := range uint64(50) {
		objects := page(seed)
		if !slices.Equal(objects, page(seed)) {
			t.Fatal("a page differs from itself")
		}
		if len(objects) < 5 || slices.Min(objects) < 2000 || slices.ContainsFunc(pages, func(p []int64) bool { return slices.Equal(p, objects) }) {
			t.Errorf("page %d has objects of %d", seed, objects)
		}
		pages = append(pages, objects)
	}
}

// The benchmark must grant all that it asks for, or it would measure something else.
func TestTransportAsksWhatItGrants(t *testing.T) {
	bounds := granting().Bounds
	for _, r := range asking().Ask {
		if _, v := bounds.Bound(r); v.Explain() != "" && r.Option.String() != "delayed-ack" {
			t.Errorf("%v is %v", r, v)
		}
	}
}
