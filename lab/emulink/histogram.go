package emulink

import (
	"math/bits"
	"time"
)

// histogram counts durations from a nanosecond to half an hour, in buckets whose width is at most 1/32 of their value.
type histogram struct {
	buckets [40 * subBuckets]uint32
	count   uint64
	max     int64
}

const (
	subBits    = 5
	subBuckets = 1 << subBits
)

func (h *histogram) add(v int64) {
	v = max(v, 0)
	h.max = max(h.max, v)
	h.count++
	h.buckets[min(bucket(v), len(h.buckets)-1)]++
}

func bucket(v int64) int {
	shift := max(bits.Len64(uint64(v))-subBits-1, 0)
	return shift*subBuckets + int(v>>shift)
}

// upper returns the largest value that belongs to a bucket.
func upper(bucket int) int64 {
	if bucket < subBuckets {
		return int64(bucket)
	}
	shift := bucket/subBuckets - 1
	return int64(bucket-shift*subBuckets+1)<<shift - 1
}

// percentile returns an upper bound of the q-quantile of all values.
func (h *histogram) percentile(q float64) time.Duration {
	rank := uint64(q * float64(h.count))
	var seen uint64
	for i, n := range h.buckets {
		if seen += uint64(n); seen > rank {
			return time.Duration(min(upper(i), h.max))
		}
	}
	return time.Duration(h.max)
}

func (h *histogram) summary() Lateness {
	return Lateness{P50: h.percentile(0.50), P99: h.percentile(0.99), Max: time.Duration(h.max)}
}
