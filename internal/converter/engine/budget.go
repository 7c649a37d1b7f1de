package engine

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// defaultMemory is the memory of a Budget made with NewBudget(0, ...).
const defaultMemory = 256 << 20

// Budget bounds the connections and the memory of all engines of a process together. NewBudget makes it.
type Budget struct {
	memory int64   // bytes that may wait for slow ends, in user memory and in pipes
	shares *shares // of the kernel's memory
	most   int64   // connections
	pairs  atomic.Int64

	mu      sync.Mutex
	engines atomic.Pointer[[]*Engine] // those that may have connections; replaced under mu
}

// NewBudget returns a Budget. memory bounds the bytes that wait for slow ends; 0: 256 MiB. The
// system's limit for TCP bounds those in the kernel's buffers, and the limit of descriptors the connections, which need
// two each. engines is the largest number of engines at a time.
func NewBudget(memory, engines int) *Budget {
	if memory == 0 {
		memory = defaultMemory
	}
	limit := int64(min(descriptorLimit(), math.MaxInt32))
	pipes := int64(engines * processors() * pipesMost * 2) // without a pipe, bytes are read and written
	return &Budget{memory: int64(memory), shares: newShares(), most: (limit - spareDescriptors - min(pipes, limit/2)) / 2}
}

func (b *Budget) add(e *Engine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := append(slices.Clone(b.all()), e)
	b.engines.Store(&all)
}

func (b *Budget) remove(e *Engine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(b.all()), func(other *Engine) bool { return other == e })
	b.engines.Store(&all)
}

func (b *Budget) all() []*Engine {
	if all := b.engines.Load(); all != nil {
		return *all
	}
	return nil
}

// hasRoom reports whether another connection may be accepted.
func (b *Budget) hasRoom() bool { return b.pairs.Load() < b.most }

// hasMemory reports whether fewer bytes wait for slow ends than memory allows.
func (b *Budget) hasMemory() bool {
	waiting := int64(0)
	for _, e := range b.all() {
		for _, l := range e.loops {
			waiting += l.waiting.Load()
		}
	}
	return waiting < b.memory
}
