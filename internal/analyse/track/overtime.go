package track

import "math"

// periods is the number of parts of time for which the round trips of a direction are kept.
const periods = 16

// shortestPeriod is the length of a part at first, in nanoseconds.
const shortestPeriod = 100 * millisecond

// overTime keeps the mean round trip of equal parts of time. The parts cover all the time from the first sample on. If
// that gets longer than all parts, each two neighbours become one, so that the memory does not grow.
type overTime struct {
	began int64
	level uint8 // each part is shortestPeriod << level long
	parts [periods]struct {
		mean  float32
		count uint32
	}
}

func newOverTime(began int64) *overTime { return &overTime{began: began} }

func (o *overTime) add(at, rtt int64) {
	i := max(0, at-o.began) / shortestPeriod >> o.level
	for i >= periods {
		o.merge()
		i >>= 1
	}
	p := &o.parts[i]
	p.count++
	p.mean += (float32(rtt) - p.mean) / float32(p.count)
}

// merge makes one part of each two.
func (o *overTime) merge() {
	for i := range periods / 2 {
		a, b := o.parts[2*i], o.parts[2*i+1]
		a.mean, a.count = mean(a.mean, b.mean, a.count, b.count), a.count+b.count
		o.parts[i] = a
	}
	clear(o.parts[periods/2:])
	o.level++
}

// mean returns the mean of all samples, from the means a and b of ofA and ofB samples.
func mean(a, b float32, ofA, ofB uint32) float32 {
	if ofB == 0 {
		return a
	}
	return (a*float32(ofA) + b*float32(ofB)) / float32(ofA+ofB)
}

// RTTOverTime has the mean round trips of equal parts of time. Times are in seconds after the connection's first packet.
// Means of parts without samples are 0.
type RTTOverTime struct {
	From    float64   `json:"from"`
	Period  float64   `json:"period"` // the length of each part
	Means   []float64 `json:"means"`
	Samples []uint32  `json:"samples"`
}

// RTTPeriod is a part of an RTTOverTime.
type RTTPeriod struct {
	From, To, Mean float64
	Samples        uint32
}

// Periods returns the parts that have samples.
func (o *RTTOverTime) Periods() (list []RTTPeriod) {
	if o == nil {
		return nil
	}
	for i, n := range o.Samples {
		if n > 0 {
			from := o.From + float64(i)*o.Period
			list = append(list, RTTPeriod{from, from + o.Period, o.Means[i], n})
		}
	}
	return list
}

func (o *overTime) record(first int64) *RTTOverTime {
	if o == nil {
		return nil
	}
	used := periods
	for o.parts[used-1].count == 0 {
		used--
	}
	r := &RTTOverTime{seconds(o.began - first), seconds(shortestPeriod << o.level), make([]float64, used), make([]uint32, used)}
	for i, p := range o.parts[:used] {
		r.Means[i], r.Samples[i] = math.Round(float64(p.mean))/1e9, p.count
	}
	return r
}
