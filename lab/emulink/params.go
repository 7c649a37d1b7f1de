package emulink

import (
	"fmt"
	"time"
)

// DefaultMTU is the largest IP packet a link carries by default.
const DefaultMTU = 1500

// Params describes one direction of a link.
type Params struct {
	// Rate in bit/s, counted on whole IP packets (header included, no framing). 0 is unlimited: packets take no time on
	// the line and the queue is never used.
	Rate int64
	// Delay is the one-way propagation delay, added after serialisation.
	Delay time.Duration
	// Jitter varies Delay uniformly by ±Jitter for each packet. Packets keep their order, so on a busy link a
	// late packet delays those behind it.
	Jitter time.Duration
	// Loss is the probability, 0..1, that a packet is lost, independently of all others. Lost packets use
	// their share of Rate.
	Loss float64
	// Queue is the capacity of the drop-tail queue in bytes, including the packet being sent. 0 is
	// DefaultQueue.
	Queue int
	Impairments
}

// Impairments describes what a link does to packets besides delay and independent loss. All impairments are
// drawn for each packet, from the seed.
type Impairments struct {
	// Burst is the probability that a packet begins a burst of losses, in the model of Gilbert and Elliott: a
	// link is in a good or a bad state, and each packet may change it. In the good state only Loss applies.
	Burst float64
	// BurstLength is the mean length of a burst in packets, 1 or more. 0 is DefaultBurstLength.
	BurstLength float64
	// BurstLoss is the probability that a packet in a burst is lost. 0 is 1.
	BurstLoss float64
	// Reorder is the probability that a packet is held back for ReorderBy at the end of the link, so that
	// later packets overtake it.
	Reorder float64
	// ReorderBy is the time for which reordered packets are held back. 0 is DefaultReorderBy.
	ReorderBy time.Duration
	// Duplicate is the probability that a copy follows a packet. Copies use nothing of Rate.
	Duplicate float64
	// Corrupt is the probability that one bit behind a packet's IP header is flipped. The checksums of TCP
	// and UDP detect it.
	Corrupt float64
	// Tamper is the probability that one byte of a TCP segment with payload is changed and TCP's checksum
	// corrected, as by a broken middlebox. Only the receiver's own checksum, such as MPTCP's, or encryption
	// detects it.
	Tamper float64
}

// Defaults of impairments.
const (
	DefaultBurstLength = 10
	DefaultReorderBy   = 5 * time.Millisecond
)

const (
	maxRate        = int64(1e12) // 1 Tbit/s keeps all arithmetic within int64
	maxDelay       = time.Minute
	maxQueue       = 1 << 30
	maxBurstLength = 1e6
)

// Validate returns an error for the first value out of range. The error names the allowed range.
func (p Params) Validate() error {
	switch {
	case p.Rate < 0 || p.Rate > maxRate:
		return fmt.Errorf("rate %d bit/s is out of range: use 0 (unlimited) to %d", p.Rate, maxRate)
	case p.Delay < 0 || p.Delay > maxDelay:
		return fmt.Errorf("delay %v is out of range: use 0 to %v", p.Delay, maxDelay)
	case p.Jitter < 0 || p.Jitter > p.Delay:
		return fmt.Errorf("jitter %v is out of range: use 0 to the delay, %v", p.Jitter, p.Delay)
	case p.Queue < 0 || p.Queue > maxQueue:
		return fmt.Errorf("queue %d bytes is out of range: use 0 (default) to %d", p.Queue, maxQueue)
	case !isProbability(p.Loss):
		return fmt.Errorf("loss %v is out of range: use 0 to 1", p.Loss)
	}
	return p.Impairments.validate()
}

func (i Impairments) validate() error {
	for _, p := range []struct {
		name  string
		value float64
	}{
		{"burst", i.Burst}, {"burst_loss", i.BurstLoss}, {"reorder", i.Reorder},
		{"duplicate", i.Duplicate}, {"corrupt", i.Corrupt}, {"tamper", i.Tamper},
	} {
		if !isProbability(p.value) {
			return fmt.Errorf("%s %v is out of range: use 0 to 1", p.name, p.value)
		}
	}
	switch {
	case i.BurstLength != 0 && !(i.BurstLength >= 1 && i.BurstLength <= maxBurstLength):
		return fmt.Errorf("burst_length %v is out of range: use 0 (default) or 1 to %.0f packets", i.BurstLength, maxBurstLength)
	case i.ReorderBy < 0 || i.ReorderBy > maxDelay:
		return fmt.Errorf("reorder_by %v is out of range: use 0 (default) to %v", i.ReorderBy, maxDelay)
	}
	return nil
}

// Impaired reports whether a link does more to packets than to delay them and lose each independently.
func (i Impairments) Impaired() bool {
	return i.Burst > 0 || i.Reorder > 0 || i.Duplicate > 0 || i.Corrupt > 0 || i.Tamper > 0
}

// isProbability reports whether p is in 0..1. It is false for NaN.
func isProbability(p float64) bool { return p >= 0 && p <= 1 }

func (i Impairments) burstLength() float64 {
	if i.BurstLength == 0 {
		return DefaultBurstLength
	}
	return i.BurstLength
}

func (i Impairments) burstLoss() float64 {
	if i.BurstLoss == 0 {
		return 1
	}
	return i.BurstLoss
}

func (i Impairments) reorderBy() time.Duration {
	if i.ReorderBy == 0 {
		return DefaultReorderBy
	}
	return i.ReorderBy
}

// DefaultQueue returns the queue size of a direction that sets none: 100 ms at the link's rate, as access
// routers are commonly sized. It is at least 32 full packets, so that a slow link holds TCP's initial burst.
func DefaultQueue(rate int64) int {
	const depth = 100 * time.Millisecond
	bytes := rate / 8 / int64(time.Second/depth)
	return int(min(max(bytes, 32*DefaultMTU), maxQueue))
}

// QueueBytes returns the effective size of the queue.
func (p Params) QueueBytes() int {
	if p.Queue > 0 {
		return p.Queue
	}
	return DefaultQueue(p.Rate)
}

// Stats counts packets in one direction since the start or the last reset.
type Stats struct {
	Packets uint64 // delivered, copies included
	Bytes   uint64 // delivered, IP packets
	// QueueDrops exceeded the queue. LossDrops were lost at random. DownDrops arrived while the link was
	// down.
	QueueDrops uint64
	LossDrops  uint64
	DownDrops  uint64
	// Reordered were held back. Duplicated, Corrupted and Tampered are also counted in Packets.
	Reordered  uint64
	Duplicated uint64
	Corrupted  uint64
	Tampered   uint64
	// RingDrops and WriteErrors are failures of the emulator itself. Both are zero in a valid run.
	RingDrops   uint64
	WriteErrors uint64
	// Energy is the energy that the link's radio has used, in joules, for both directions.
	Energy float64
	Late   Lateness
}

// Lateness describes how far from their due time packets left the emulator: late, or up to 0.1 ms early when
// the emulator is busy.
type Lateness struct {
	P50 time.Duration
	P99 time.Duration
	Max time.Duration
}
