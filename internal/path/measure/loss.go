package measure

import (
	"math"
	"time"
)

// Arrivals estimates the share of lost packets among those sent to this host on a subflow. It uses only the counts of
// packets that arrived, and of those among them that arrived after a gap. A gap that a loss leaves lasts for a round
// trip. There are two estimates:
//
//   - The share f of samples with such packets gives the loss rate p, while losses are rare (see rareLoss):
//
//     p = -ln(1-f) / (interval + rtt) * time / segments
//
//   - If almost every sample has such packets, f tells nothing. Then the loss follows from the share of packets that
//     arrived in order, and from the variance of that share over the samples (see frequentLoss).
//
// A packet that was overtaken leaves a gap, too, which closes when the packet arrives. Lost does not count such gaps if
// the variance shows that they were shorter than the round trip (see highestLoss). Seems counts them as losses.
//
// Only samples in which packets arrived count. A burst after a pause may hold several packets that came after a gap,
// and the pause itself is no evidence. loss_test.go shows how accurate the estimates are.
type Arrivals struct {
	seconds window[arrivals]
	cached  frequentLoss
}

// frequentLoss keeps a result of arrivals.frequentLoss until the next sample, because computing it takes long.
type frequentLoss struct {
	second int64
	trip   time.Duration
	p      float64
}

type arrivals struct {
	samples int
	active  int // samples in which packets arrived
	grew    int // active samples with packets that arrived after a gap
	time    time.Duration
	busy    time.Duration // duration of the active samples

	// Sums over the samples, of packets and of their squares and products.
	segments, late                                  float64
	segmentsSquared, lateSquared, lateTimesSegments float64
}

// Take adds one sample, taken elapsed after the previous one: the packets with data that arrived, and those among them
// that arrived after a gap.
func (a *Arrivals) Take(now time.Time, elapsed time.Duration, segments, late uint64) {
	a.cached = frequentLoss{}
	c := a.seconds.at(now)
	c.samples++
	c.time += elapsed
	if segments == 0 && late == 0 {
		return
	}
	c.active++
	c.busy += elapsed
	if late > 0 {
		c.grew++
	}
	n := float64(segments)
	l := min(float64(late), n)
	c.segments += n
	c.late += l
	c.segmentsSquared += n * n
	c.lateSquared += l * l
	c.lateTimesSegments += l * n
}

// sum returns the sums of the last seconds. ok is false if there was too little data.
func (a *Arrivals) sum(now time.Time) (sum arrivals, ok bool) {
	for c := range a.seconds.until(now) {
		sum.samples += c.samples
		sum.active += c.active
		sum.grew += c.grew
		sum.time += c.time
		sum.busy += c.busy
		sum.segments += c.segments
		sum.late += c.late
		sum.segmentsSquared += c.segmentsSquared
		sum.lateSquared += c.lateSquared
		sum.lateTimesSegments += c.lateTimesSegments
	}
	return sum, sum.time >= 2*time.Second && sum.samples >= 10 && sum.segments >= 10
}

// Lost returns the share of recently lost packets. base is the shortest round trip, trip the present one with its
// queue. ok is false if there was too little data.
func (a *Arrivals) Lost(now time.Time, base, trip time.Duration) (p float64, ok bool) {
	sum, ok := a.sum(now)
	if !ok {
		return 0, false
	}
	return min(a.seems(&sum, now, trip), sum.highestLoss(base)), true
}

// Seems returns what Lost would return if all packets that were overtaken had been lost.
func (a *Arrivals) Seems(now time.Time, trip time.Duration) (p float64, ok bool) {
	sum, ok := a.sum(now)
	if !ok {
		return 0, false
	}
	return a.seems(&sum, now, trip), true
}

// rareUntil is the share of samples with packets after a gap up to which that share tells the loss.
const rareUntil = 0.9

func (a *Arrivals) seems(sum *arrivals, now time.Time, trip time.Duration) float64 {
	p := sum.rareLoss(trip)
	if !sum.losesOften() {
		return p
	}
	if f := &a.cached; f.second != now.Unix() || f.trip != trip {
		*f = frequentLoss{now.Unix(), trip, sum.frequentLoss(trip)}
	}
	return max(p, a.cached.p)
}

// losesOften reports whether there are enough samples, and almost every one has packets that arrived after a gap.
func (c *arrivals) losesOften() bool {
	return c.active >= leastSamples && float64(c.grew) > rareUntil*float64(c.active)
}

// rareLoss estimates the loss from the share of samples with packets that arrived after a gap. The estimate is too low if
// almost every sample has some.
func (c *arrivals) rareLoss(trip time.Duration) float64 {
	n := float64(c.active)
	f := float64(c.grew) / n
	return math.Abs(math.Log(1-min(f, 1-0.5/n))) / (c.interval() + trip).Seconds() * c.busy.Seconds() / c.segments
}

// interval returns the mean duration of the active samples.
func (c *arrivals) interval() time.Duration { return c.busy / time.Duration(c.active) }

// variance returns the variance of the share of packets that arrived after a gap, and its mean.
func (c *arrivals) variance() (variance, mean float64) {
	mean = c.late / c.segments
	return max(0, (c.lateSquared-2*mean*c.lateTimesSegments+mean*mean*c.segmentsSquared)/c.segmentsSquared), mean
}

const (
	// frequentLoss compares losses from leastLoss to mostLoss, each of them lossStep times the one before.
	leastLoss, mostLoss, lossStep = 0.0002, 0.3, 1.1
	// timesSent is the number of times that a packet may have been sent.
	timesSent = 5
	// meanExact and varianceExact are the standard deviations of the logarithms of the mean and the variance of the share
	// of packets in order.
	meanExact, varianceExact = 0.1, 0.4
)

// frequentLoss estimates the loss if gaps are open almost all the time, as on fast paths whose sender ignores losses. It
// returns the loss that best explains the share of packets in order, and the variance of that share over the samples.
//
// Of the packets that arrive, the share (1-p)p^k was sent k times before. Such a packet is the next in order if no
// packet of the last round trip was lost that had been sent k times or more before, because the gaps of all others are
// younger. So the share in order is
//
//	sum over k of (1-p) p^k exp(-open), open = p^(k+1) segments / time * rtt
//
// While losses are few, packets in order are mostly new ones, in times without a gap. If there are hardly any such
// times, they are mostly packets that were sent again and fill the oldest gap, so they are as many as the losses. Both
// can give the same share. In the first case, it varies much more from sample to sample.
func (c *arrivals) frequentLoss(trip time.Duration) (p float64) {
	variance, mean := c.variance()
	each := c.segments / float64(c.active)
	ordered := max(1-mean, 0.5/c.segments)
	variance = max(variance, 0.5*ordered/each)
	trips := c.busy.Seconds() / max(trip, time.Millisecond).Seconds()
	least := math.Inf(1)
	for q := leastLoss; q < mostLoss; q *= lossStep {
		var shares, variances, times [timesSent]float64 // by k; times is the expected number of times without a gap
		share, open := 1-q, q*c.segments/trips/(1-q)
		for k := range timesSent {
			shares[k] = share * math.Exp(-open)
			variances[k] = share * share * spread(open, trip, c.interval())
			times[k] = trips * open * math.Exp(-open)
			share, open = share*q, open*q
		}
		// There may have been no time in which new packets were in order, or packets sent once before.
		absent := 0.0
		for first := range 3 {
			i, v := 0.0, 0.0
			for k := first; k < timesSent; k++ {
				i += shares[k]
				v += variances[k]
				if k > 0 { // each packet by chance
					v += shares[k] / each
				}
			}
			m, w := math.Log(i/ordered)/meanExact, math.Log(v/variance)/varianceExact
			if off := m*m + w*w + 2*absent - 2*math.Log1p(-math.Exp(-times[first])); off < least {
				least, p = off, q
			}
			absent += times[first]
		}
	}
	return p
}

const (
	// mostLate is the share of packets after a gap up to which the spread tells how long the gaps are. Beyond that,
	// packets that were sent again change it.
	mostLate = 0.8
	// leastGap is the least duration of a gap that a loss leaves, as a part of the shortest round trip. It may be shorter
	// than the round trip because the sender sends less in this time than before.
	leastGap = 0.8
	// groupError is the number of packets by which a gap may seem shorter, because packets arrive in groups.
	groupError = 1.5
)

// highestLoss returns the highest loss that is possible with the durations of the gaps. The variance of the share of
// packets after a gap grows with the sum of the squares of the durations. If all gaps last for a round trip, as after
// losses, the sum tells their number. Shorter gaps, of packets that were overtaken, add little to the sum.
func (c *arrivals) highestLoss(base time.Duration) float64 {
	variance, mean := c.variance()
	least := leastGap*base.Seconds() - groupError*c.busy.Seconds()/c.segments
	if least <= 0 || mean <= 0 || mean > mostLate {
		return 1
	}
	open := -math.Log(1 - mean)
	shortest, longest := 0.0, base.Seconds()
	for range 12 { // bisect
		middle := (shortest + longest) / 2
		if spread(open, time.Duration(middle*float64(time.Second)), c.interval()) < variance {
			shortest = middle
		} else {
			longest = middle
		}
	}
	return open * longest / (least * least) * c.busy.Seconds() / c.segments
}

// spread returns the variance of the part of an interval in which no gap is open, if gaps of this duration begin at random.
// open is the mean number of gaps that begin within the duration of one.
func spread(open float64, gap, interval time.Duration) float64 {
	// The covariance of two moments that are u apart is exp(-open) (exp(-open u/gap) - exp(-open)), up to u = gap. The integral of
	// 2 (interval-u) / interval² times that is the variance.
	if open <= 0 || gap <= 0 {
		return 0
	}
	d, g := interval.Seconds(), gap.Seconds()
	u, a := min(d, g), open/g
	fades := math.Exp(-a * u)
	integral := d*(1-fades)/a - (1-fades*(1+a*u))/(a*a) - math.Exp(-open)*(d*u-u*u/2)
	return max(0, 2*math.Exp(-open)*integral/(d*d))
}

// Sent estimates the share of lost packets among those that this host sent on a subflow. A packet counts as lost if it was
// retransmitted, unless the peer reported that it already had the data (DSACK, RFC 2883).
type Sent struct{ seconds window[sent] }

type sent struct{ segments, again, needless uint64 }

// Take adds one sample: the packets with data sent since the last one, the retransmissions among them, and the
// retransmissions that the peer reported as needless.
func (s *Sent) Take(now time.Time, segments, again, needless uint64) {
	c := s.seconds.at(now)
	c.segments += segments
	c.again += again
	c.needless += needless
}

// enoughSent is the number of packets that an estimate needs.
const enoughSent = 50

func (s *Sent) sum(now time.Time) (sum sent, ok bool) {
	for c := range s.seconds.until(now) {
		sum.segments += c.segments
		sum.again += c.again
		sum.needless += c.needless
	}
	return sum, sum.segments >= enoughSent
}

// Lost returns the share of recently lost packets. ok is false if too few packets were sent.
func (s *Sent) Lost(now time.Time) (p float64, ok bool) {
	sum, ok := s.sum(now)
	if !ok {
		return 0, false
	}
	// A report comes a round trip later than the retransmission.
	return min(1, float64(sum.again-min(sum.again, sum.needless))/float64(sum.segments)), true
}

// Seems returns what Lost would return if no retransmission had been needless.
func (s *Sent) Seems(now time.Time) (p float64, ok bool) {
	sum, ok := s.sum(now)
	if !ok {
		return 0, false
	}
	return min(1, float64(sum.again)/float64(sum.segments)), true
}
