package track

import "testing"

// Subflows are distinguished, however many a connection has.
func TestManySubflows(t *testing.T) {
	var r ranges
	r.append(1000, 100, 70_000, 0)
	if fresh, other, original := r.add(1000, 100, 70_000-1<<16, 0); fresh != 0 || other != 100 || original.subflow != 70_000 {
		t.Errorf("%d fresh, %d of another subflow: %d", fresh, other, original.subflow)
	}
}
