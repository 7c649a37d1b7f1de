package deadline

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever is set, changed and taken out, the first entry is the one that is due first, and of several the least.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := New(cmp.Compare[int])
		entries := make([]*Entry[int], 8)
		for i := range entries {
			entries[i] = &Entry[int]{Item: i}
		}
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				due := time.Time{}
				if seconds := rapid.Int64Range(0, 4).Draw(t, "due"); seconds > 0 {
					due = time.Unix(seconds, 0)
				}
				q.Set(rapid.SampledFrom(entries).Draw(t, "entry"), due)
			},
			"": func(t *rapid.T) {
				in := slices.DeleteFunc(slices.Clone(entries), func(e *Entry[int]) bool { return e.Due().IsZero() })
				slices.SortStableFunc(in, func(a, b *Entry[int]) int { return a.Due().Compare(b.Due()) })
				if q.Len() != len(in) {
					t.Fatalf("%d entries, want %d", q.Len(), len(in))
				}
				if len(in) == 0 {
					if q.First() != nil {
						t.Fatalf("the first of none is %+v", q.First())
					}
					return
				}
				if q.First() != in[0] {
					t.Fatalf("the first is %+v, want %+v", q.First(), in[0])
				}
				for _, e := range in {
					if !q.Has(e) {
						t.Fatalf("%+v is not in the queue", e)
					}
				}
			},
		})
	})
}
