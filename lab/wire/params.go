package wire

import (
	"fmt"
	"time"
)

// DefaultMTU is the largest IP packet a line carries unless told otherwise.
const DefaultMTU = 1500

// Params describes one direction of a link.
type Params struct {
	// Rate in bit/s, counted on whole IP packets (header included, no
	// framing). 0 is unlimited: packets take no time on the line and the
	// queue is never used.
	Rate int64 `json:"rate,omitempty"`
	// Delay is the one-way propagation delay, added after serialisation.
	Delay time.Duration `json:"delay,omitempty"`
	// Jitter varies Delay uniformly in ±Jitter, packet by packet. Packets
	// keep their order, so on a busy line late packets hold up those behind.
	Jitter time.Duration `json:"jitter,omitempty"`
	// Loss is the probability, 0..1, that a packet is lost on the line,
	// independent of all others. Lost packets have used their share of Rate.
	Loss float64 `json:"loss,omitempty"`
	// Queue is how many bytes may wait for the line, the packet being sent
	// included; what does not fit is dropped (drop-tail). 0 is DefaultQueue.
	Queue int `json:"queue,omitempty"`
}

const (
	maxRate  = int64(1e12) // 1 Tbit/s keeps all arithmetic within int64
	maxDelay = time.Minute
	maxQueue = 1 << 30
)

// Validate reports the first value that makes no sense, with what is allowed.
func (p Params) Validate() error {
	switch {
	case p.Rate < 0 || p.Rate > maxRate:
		return fmt.Errorf("rate %d bit/s is out of range: use 0 (unlimited) to %d", p.Rate, maxRate)
	case p.Delay < 0 || p.Delay > maxDelay:
		return fmt.Errorf("delay %v is out of range: use 0 to %v", p.Delay, maxDelay)
	case p.Jitter < 0 || p.Jitter > p.Delay:
		return fmt.Errorf("jitter %v is out of range: use 0 to the delay, %v", p.Jitter, p.Delay)
	case !(p.Loss >= 0 && p.Loss <= 1):
		return fmt.Errorf("loss %v is out of range: use 0 to 1", p.Loss)
	case p.Queue < 0 || p.Queue > maxQueue:
		return fmt.Errorf("queue %d bytes is out of range: use 0 (default) to %d", p.Queue, maxQueue)
	}
	return nil
}

// DefaultQueue is the queue of a direction that names none: 100 ms at the
// line's rate, as routers of access links are commonly sized, but never less
// than 32 full packets, so that a slow line can hold TCP's initial burst.
func DefaultQueue(rate int64) int {
	const depth = 100 * time.Millisecond
	bytes := rate / 8 / int64(time.Second/depth)
	return int(min(max(bytes, 32*DefaultMTU), maxQueue))
}

// QueueBytes is the queue's effective size.
func (p Params) QueueBytes() int {
	if p.Queue > 0 {
		return p.Queue
	}
	return DefaultQueue(p.Rate)
}

// Stats counts what happened in one direction since the start or the last
// reset.
type Stats struct {
	Packets uint64 `json:"packets"` // delivered
	Bytes   uint64 `json:"bytes"`   // delivered, IP packets
	// QueueDrops did not fit the queue; LossDrops were lost by chance;
	// DownDrops met a link that was down.
	QueueDrops uint64 `json:"queue_drops"`
	LossDrops  uint64 `json:"loss_drops"`
	DownDrops  uint64 `json:"down_drops"`
	// RingDrops and WriteErrors are faults of the emulation, not of the
	// network it emulates: in a sound run both are zero.
	RingDrops   uint64   `json:"ring_drops"`
	WriteErrors uint64   `json:"write_errors"`
	Late        Lateness `json:"late"`
}

// Lateness is how far from their due time packets left the emulation: after it, or
// on a busy wire up to 0.1 ms before.
type Lateness struct {
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
	Max time.Duration `json:"max"`
}
