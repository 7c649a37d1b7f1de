package emulink

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestBucketsHoldTheirValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Int64Range(0, 1<<40).Draw(t, "v")
		b := bucket(v)
		if up := upper(b); v > up || float64(up-v) > float64(v)/subBuckets+1 {
			t.Fatalf("%d is in bucket %d, which ends at %d", v, b, up)
		}
		if b > 0 && upper(b-1) >= v {
			t.Fatalf("%d is in bucket %d, but the one before ends at %d", v, b, upper(b-1))
		}
	})
}

func TestPercentiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, 1e10), 1, 200).Draw(t, "values")
		var h histogram
		for _, v := range values {
			h.add(v)
		}
		slices.Sort(values)
		for _, q := range []float64{0, 0.5, 0.99} {
			want := values[int(q*float64(len(values)))]
			got := int64(h.percentile(q))
			if got < want || float64(got-want) > float64(want)/subBuckets+1 {
				t.Fatalf("percentile %v of %v is %d, want %d", q, values, got, want)
			}
		}
		if s := h.summary(); int64(s.Max) != values[len(values)-1] {
			t.Fatalf("max of %v is %v", values, s.Max)
		}
	})
}

func TestHistogramTakesAnyValue(t *testing.T) {
	var h histogram
	h.add(math.MaxInt64)
	h.add(-5) // clocks can go backwards
	if h.count != 2 || h.percentile(1) != math.MaxInt64 {
		t.Errorf("count %d, largest %v", h.count, h.percentile(1))
	}
}
