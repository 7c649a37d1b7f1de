package emulink

import "math"

// maxHeld is how many packets a line holds back at a time. More keep their order.
const maxHeld = 4096

// held are packets that those behind them overtake, in the order in which they are due.
type held struct {
	packets []heldPacket
	spare   [][]byte // of packets that are gone
}

type heldPacket struct {
	due  int64
	data []byte
	fate fate
}

func (h *held) full() bool { return len(h.packets) == maxHeld }

// next is when the first one is due, math.MaxInt64 if there is none.
func (h *held) next() int64 {
	if len(h.packets) == 0 {
		return math.MaxInt64
	}
	return h.packets[0].due
}

// add keeps a copy of a packet.
func (h *held) add(due int64, data []byte, f fate) {
	var buffer []byte
	if n := len(h.spare); n > 0 {
		buffer, h.spare = h.spare[n-1], h.spare[:n-1]
	}
	f.late = false // from now on it is due when it is due
	h.packets = append(h.packets, heldPacket{due: due, data: append(buffer[:0], data...), fate: f})
	for i := len(h.packets) - 1; i > 0 && h.packets[i-1].due > due; i-- {
		h.packets[i-1], h.packets[i] = h.packets[i], h.packets[i-1]
	}
}

func (h *held) pop() {
	h.spare = append(h.spare, h.packets[0].data)
	h.packets = append(h.packets[:0], h.packets[1:]...)
}

// drop forgets all of them, and returns how many they were.
func (h *held) drop() int {
	n := len(h.packets)
	for range n {
		h.pop()
	}
	return n
}
