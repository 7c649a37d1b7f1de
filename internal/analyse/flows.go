package analyse

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"

	"github.com/detour-collective/dcol/internal/packet"
)

// flowKey identifies a flow. The lower address and port come first, so that both directions have the same key.
type flowKey struct {
	low, high address
	ports     uint32 // of low in the upper half
}

// address is an IPv6 address as two numbers.
type address struct{ upper, lower uint64 }

func addressOf(b *[16]byte) address {
	return address{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (a address) less(b address) bool {
	return a.upper < b.upper || a.upper == b.upper && a.lower < b.lower
}

// keyOf returns the key of a segment's flow. It reports whether the segment's source is the lower address and port.
func keyOf(s *packet.Summary) (key flowKey, low bool) {
	src, dst := addressOf(&s.Src), addressOf(&s.Dst)
	if src.less(dst) || src == dst && s.SrcPort <= s.DstPort {
		return flowKey{src, dst, uint32(s.SrcPort)<<16 | uint32(s.DstPort)}, true
	}
	return flowKey{dst, src, uint32(s.DstPort)<<16 | uint32(s.SrcPort)}, false
}

// flow is a flow of an MPTCP connection. It is alive, or closed and remembered (buried, see graves).
type flow struct {
	key      flowKey
	hash     uint32 // 0: the place is free
	slot     uint32 // of its worker; of a buried one, the number of its grave
	isn      uint32 // of the SYN
	worker   int16
	isnKnown bool
	buried   bool
}

// flowTable holds flows by their keys, with open addressing: most lookups touch one cache line. A Go map takes twice as
// long with tens of thousands of flows.
type flowTable struct {
	places []flow // a power of two
	used   int
	seed   [2]uint64 // random, so that nobody can choose addresses that collide
}

const smallestTable = 1024

func newFlowTable() flowTable {
	return flowTable{places: make([]flow, smallestTable), seed: [2]uint64{rand.Uint64(), rand.Uint64()}}
}

// hash mixes a key as wyhash does: by products of 128 bits.
func (t *flowTable) hash(k *flowKey) uint32 {
	const odd = 0xa0761d6478bd642f
	h1, l1 := bits.Mul64(k.low.upper^t.seed[0], k.low.lower^t.seed[1])
	h2, l2 := bits.Mul64(k.high.upper^t.seed[1]^odd, k.high.lower^t.seed[0])
	h3, l3 := bits.Mul64(h1^l1^uint64(k.ports)^t.seed[0], h2^l2^odd)
	return uint32(h3^l3) | 1
}

// find returns the flow with a key, or nil. It is valid until the next insert or remove.
func (t *flowTable) find(k *flowKey) *flow {
	hash := t.hash(k)
	mask := uint32(len(t.places) - 1)
	for i := hash >> 1 & mask; ; i = (i + 1) & mask {
		f := &t.places[i]
		if f.hash == 0 {
			return nil
		}
		if f.hash == hash && f.key == *k {
			return f
		}
	}
}

// insert adds a flow, whose key must not be there.
func (t *flowTable) insert(f flow) {
	if t.used >= len(t.places)/2 {
		was := t.places
		t.places = make([]flow, 2*len(was))
		for i := range was {
			if was[i].hash != 0 {
				t.place(was[i])
			}
		}
	}
	f.hash = t.hash(&f.key)
	t.place(f)
	t.used++
}

func (t *flowTable) place(f flow) {
	mask := uint32(len(t.places) - 1)
	i := f.hash >> 1 & mask
	for t.places[i].hash != 0 {
		i = (i + 1) & mask
	}
	t.places[i] = f
}

// remove deletes a flow that find returned. The flows behind it move up to where a lookup finds them.
func (t *flowTable) remove(f *flow) {
	mask := uint32(len(t.places) - 1)
	free := f.hash >> 1 & mask
	for &t.places[free] != f {
		free = (free + 1) & mask
	}
	t.used--
	for i := (free + 1) & mask; t.places[i].hash != 0; i = (i + 1) & mask {
		if wanted := t.places[i].hash >> 1 & mask; (i-wanted)&mask >= (i-free)&mask {
			t.places[free] = t.places[i]
			free = i
		}
	}
	t.places[free] = flow{}
}

const (
	// graveTime is the time for which a flow is remembered after its end, in nanoseconds. Linux repeats a FIN for 102 s if
	// the round trip is short, and each may have an answer.
	graveTime = 120e9
	// mostGraves bounds the number of graves. They take some 15 MB.
	mostGraves = 1 << 16
)

// graves holds closed flows that stay in the table, so that no late packet begins a connection.
type graves struct {
	list []grave // by the time of their end
	head int
	gone uint32 // graves before the list
}

type grave struct {
	key flowKey
	at  int64 // of the activity clock
}

// bury keeps a closed flow in the table until its grave is opened.
func (g *graves) bury(f *flow, now int64) {
	if g.head > 1024 && g.head > len(g.list)/2 {
		n := copy(g.list, g.list[g.head:])
		g.gone += uint32(g.head)
		g.list, g.head = g.list[:n], 0
	}
	f.buried, f.slot = true, g.gone+uint32(len(g.list))
	g.list = append(g.list, grave{f.key, now})
}

// open removes flows from the table that ended long ago, or exceed the limit.
func (g *graves) open(t *flowTable, now int64) {
	for g.head < len(g.list) {
		oldest := &g.list[g.head]
		if now-oldest.at <= graveTime && len(g.list)-g.head <= mostGraves {
			return
		}
		if f := t.find(&oldest.key); f != nil && f.buried && f.slot == g.gone+uint32(g.head) {
			t.remove(f)
		}
		g.head++
	}
}
