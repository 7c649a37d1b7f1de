package traffic

import (
	"errors"
	"time"
)

// Report has the arrival times. The client prints it as JSON.
type Report struct {
	Size     int           `json:"size"`        // of each message or answer, bytes
	Interval time.Duration `json:"interval_ns"` // the n-th message or request was due after n intervals
	// Done has the times at which each message was delivered or request answered, on the same clock.
	Done []time.Duration `json:"done_ns"`
}

// Measured is the summary of a Report after a skip.
type Measured struct {
	Bytes   int64
	Seconds float64 // from the due time of the first to the arrival of the last
	// Latencies are the times from the due time to the arrival of each, in order.
	Latencies []time.Duration
	// Stall is the longest time in which something was due and nothing arrived.
	Stall time.Duration
}

// After measures the messages or requests that were due after the skip.
func (r Report) After(skip time.Duration) (Measured, error) {
	if r.Interval <= 0 {
		return Measured{}, errors.New("the report has no interval")
	}
	first := int((skip + r.Interval - 1) / r.Interval)
	if first >= len(r.Done) {
		return Measured{}, errors.New("nothing was due after the skip")
	}
	var m Measured
	begin := time.Duration(first) * r.Interval
	before, last := begin, begin
	for i, done := range r.Done[first:] {
		due := begin + time.Duration(i)*r.Interval
		m.Bytes += int64(r.Size)
		m.Latencies = append(m.Latencies, done-due)
		m.Stall = max(m.Stall, done-max(before, due))
		before = done
		last = max(last, done)
	}
	m.Seconds = (last - begin).Seconds()
	if m.Seconds <= 0 {
		return Measured{}, errors.New("everything was there before it was due: the clocks of the two ends differ")
	}
	return m, nil
}
