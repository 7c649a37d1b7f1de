package analyse

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

// TestFlowTable compares the table with a map, over insertions and removals of few keys, which collide often.
func TestFlowTable(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	table, want := newFlowTable(), map[flowKey]uint32{}
	keys := make([]flowKey, 3000)
	for i := range keys {
		keys[i] = flowKey{low: address{0, uint64(i)}, high: address{1, uint64(i % 7)}, ports: uint32(i%11)<<16 | 443}
	}
	for step := range uint32(200_000) {
		key := keys[random.IntN(len(keys))]
		if f := table.find(&key); f != nil {
			if slot, ok := want[key]; !ok || f.slot != slot {
				t.Fatalf("step %d: the table has slot %d, the map %d (%v)", step, f.slot, slot, ok)
			}
			table.remove(f)
			delete(want, key)
		} else {
			if _, ok := want[key]; ok {
				t.Fatalf("step %d: the table has lost a flow", step)
			}
			table.insert(flow{key: key, slot: step})
			want[key] = step
		}
		if table.used != len(want) {
			t.Fatalf("step %d: the table counts %d flows, the map %d", step, table.used, len(want))
		}
	}
	for key, slot := range want {
		if f := table.find(&key); f == nil || f.slot != slot {
			t.Errorf("slot %d is not found", slot)
		}
	}
	if size := unsafe.Sizeof(flow{}); size > 64 {
		t.Errorf("a flow has %d bytes and does not fit a cache line", size)
	}
}
