package measure

import "time"

// Peak is the highest rate lately.
type Peak struct {
	// Short makes it the highest rate over half a second, in place of a whole one.
	Short bool

	recent [peakSamples]amount
	next   int
	best   float64 // bytes a second
}

// Pauses estimates what a subflow misses while it pauses, from its highest rate.
type Pauses struct {
	peak    Peak
	repairs bool // at the last sample
}

// amount is payload in bytes, and the time in which it was carried.
type amount struct {
	bytes float64
	in    time.Duration
}

const (
	// peakSamples is the number of samples over which the highest rate is averaged, at first at least peakLeast. Data that
	// had waited for a lost packet comes all at once.
	peakSamples = 10
	peakLeast   = 5
	// peakFor is the time in which the highest rate falls to 1/e of what it was.
	peakFor = 15 * time.Second
	// pauseShare is the share of the highest rate below which a subflow pauses.
	pauseShare = 0.25
)

// Take adds one sample, taken elapsed after the previous one. carried is payload in bytes.
func (p *Peak) Take(elapsed time.Duration, carried uint64) {
	p.best *= max(0, 1-elapsed.Seconds()/peakFor.Seconds())
	over := peakSamples
	if p.Short {
		over = peakLeast
	}
	p.recent[p.next%over] = amount{float64(carried), elapsed}
	p.next++
	var sum amount
	for _, x := range p.recent {
		sum.bytes += x.bytes
		sum.in += x.in
	}
	if p.next >= peakLeast && sum.in > 0 {
		p.best = max(p.best, sum.bytes/sum.in.Seconds())
	}
}

// Rate returns the highest rate, in bits a second. It is 0 until there are enough samples.
func (p *Peak) Rate() float64 { return 8 * p.best }

// Take adds one sample, taken elapsed after the previous one. carried is payload in bytes. repairs is set while lost
// packets are awaited or sent again. It returns the payload that the subflow missed because it paused. A repair is no
// pause.
func (p *Pauses) Take(elapsed time.Duration, carried uint64, repairs bool) (missed float64) {
	repaired := repairs || p.repairs
	p.repairs = repairs
	p.peak.Short = true
	p.peak.Take(elapsed, carried)
	could := p.peak.best * elapsed.Seconds()
	if repaired || float64(carried) >= pauseShare*could {
		return 0
	}
	return could - float64(carried)
}
