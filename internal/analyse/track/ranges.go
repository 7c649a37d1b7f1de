package track

import "sort"

// span is data that one subflow carried first.
type span struct {
	start   uint64
	at      int64
	length  uint32
	subflow uint32
}

func (r span) end() uint64 { return r.start + uint64(r.length) }

const (
	// joinTime and joinLength bound spans that are kept as one.
	joinTime   = 20 * millisecond
	joinLength = 64 << 10
	// keepTime is the time, in nanoseconds, for which data is remembered even if it was acknowledged. A copy on a slow
	// path can still come.
	keepTime = 2 * second
	// maxSpans bounds the number of spans that one direction of a connection remembers.
	maxSpans = 16384
)

// ranges remembers which subflow carried which data first, ordered by data sequence numbers.
type ranges struct {
	list  []span
	head  int
	floor uint64 // data before this number was forgotten
	gone  bool   // some data was forgotten
}

func (r *ranges) append(start uint64, length uint32, subflow int, at int64) {
	if n := len(r.list); n > r.head {
		last := &r.list[n-1]
		if last.end() == start && int(last.subflow) == subflow && at-last.at < joinTime && last.length < joinLength {
			last.length += length
			return
		}
	}
	r.list = append(r.list, span{start, at, length, uint32(subflow)})
}

// search returns the index of the first span that ends behind a number.
func (r *ranges) search(number uint64) int {
	spans := r.list[r.head:]
	return r.head + sort.Search(len(spans), func(i int) bool { return int64(spans[i].end()-number) > 0 })
}

// add remembers data. It returns the number of bytes that are new, and of bytes that another subflow carried first.
func (r *ranges) add(start uint64, length uint32, subflow int, at int64) (fresh, other uint32, original span) {
	end := start + uint64(length)
	if r.gone && int64(r.floor-start) > 0 {
		if int64(r.floor-end) >= 0 {
			return 0, 0, original
		}
		start = r.floor
	}
	i := r.search(start)
	for position := start; int64(end-position) > 0; {
		if i == len(r.list) {
			n := uint32(end - position)
			r.append(position, n, subflow, at)
			return fresh + n, other, original
		}
		known := r.list[i]
		if int64(known.start-position) > 0 { // a hole before it
			n := uint32(min(end, known.start) - position)
			fresh += n
			position += uint64(n)
			if i > r.head {
				if last := &r.list[i-1]; last.end() == position-uint64(n) && int(last.subflow) == subflow && at-last.at < joinTime && last.length < joinLength {
					last.length += n
					continue
				}
			}
			r.list = append(r.list, span{})
			copy(r.list[i+1:], r.list[i:])
			r.list[i] = span{position - uint64(n), at, n, uint32(subflow)}
			i++
			continue
		}
		n := uint32(min(end, known.end()) - position)
		if int(known.subflow) != subflow {
			if other == 0 {
				original = known
			}
			other += n
		}
		position += uint64(n)
		i++
	}
	return fresh, other, original
}

// contiguous returns the end of the data without holes from a number.
func (r *ranges) contiguous(from uint64) uint64 {
	for i := r.search(from); i < len(r.list) && int64(r.list[i].start-from) <= 0; i++ {
		from = r.list[i].end()
	}
	return from
}

// forget drops data that was acknowledged long ago.
func (r *ranges) forget(acked uint64, now int64) {
	for r.head < len(r.list) {
		oldest := &r.list[r.head]
		settled := int64(acked-oldest.end()) >= 0 && now-oldest.at > keepTime
		if !settled && len(r.list)-r.head <= maxSpans {
			break
		}
		r.floor, r.gone = oldest.end(), true
		r.head++
	}
	if r.head > 32 && r.head > len(r.list)/2 {
		n := copy(r.list, r.list[r.head:])
		r.list, r.head = r.list[:n], 0
	}
}
