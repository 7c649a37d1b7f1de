package path

import (
	"math"
	"time"
)

// flow holds a subflow's rates between complete samples. They are displayed, and the rates of connections that are not
// measured are known only by them.
type flow struct {
	received, acked uint32  // bytes of payload since the last complete sample, at most 4 GiB
	in, out         float32 // bits of payload a second between the last two
}

// add counts payload, in bytes.
func (f *flow) add(received, acked uint64) {
	f.received = uint32(min(uint64(f.received)+received, math.MaxUint32))
	f.acked = uint32(min(uint64(f.acked)+acked, math.MaxUint32))
}

// settle computes the rates when a complete sample ends. elapsed is the time since the last one.
func (f *flow) settle(elapsed time.Duration) {
	*f = flow{in: rate(f.received, elapsed), out: rate(f.acked, elapsed)}
}

// rate returns bits a second.
func rate(bytes uint32, elapsed time.Duration) float32 {
	if elapsed <= 0 {
		return 0
	}
	return float32(8 * float64(bytes) / elapsed.Seconds())
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
