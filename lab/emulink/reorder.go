package emulink

import "math"

// maxHeld limits the packets that a pipe holds back at a time. Further ones keep their order.
const maxHeld = 4096

// reorderBuffer holds back packets that later ones overtake. It keeps them in the order in which they are
// due.
type reorderBuffer struct {
	packets []heldPacket
	spare   [][]byte // buffers to reuse
}

type heldPacket struct {
	due  int64
	data []byte
	fate fate
}

func (h *reorderBuffer) full() bool { return len(h.packets) == maxHeld }

// next returns when the first packet is due, or math.MaxInt64 if there is none.
func (h *reorderBuffer) next() int64 {
	if len(h.packets) == 0 {
		return math.MaxInt64
	}
	return h.packets[0].due
}

// add stores a copy of a packet.
func (h *reorderBuffer) add(due int64, data []byte, f fate) {
	var buffer []byte
	if n := len(h.spare); n > 0 {
		buffer, h.spare = h.spare[n-1], h.spare[:n-1]
	}
	f.late = false // it must not be held back again
	h.packets = append(h.packets, heldPacket{due: due, data: append(buffer[:0], data...), fate: f})
	for i := len(h.packets) - 1; i > 0 && h.packets[i-1].due > due; i-- {
		h.packets[i-1], h.packets[i] = h.packets[i], h.packets[i-1]
	}
}

func (h *reorderBuffer) pop() {
	h.spare = append(h.spare, h.packets[0].data)
	h.packets = append(h.packets[:0], h.packets[1:]...)
}

// drop discards all packets and returns their number.
func (h *reorderBuffer) drop() int {
	n := len(h.packets)
	for range n {
		h.pop()
	}
	return n
}
