package track

import "math"

// periods is the number of parts of time for which the round trips of a direction are kept.
const periods = 16

// shortestPeriod is the length of a part at first, in nanoseconds.
const shortestPeriod = 100 * millisecond

// overTime keeps the mean round trip of equal parts of time. They cover all the time from the first sample on: when it
// exceeds them, two neighbours become one, so that the memory does not grow.
type overTime struct {
	began  int64
	length int64 // of each part
	mean   [periods]float32
	count  [periods]uint32
}

func (o *overTime) add(at, rtt int64) {
	if o.length == 0 {
		o.began, o.length = at, shortestPeriod
	}
	since := max(0, at-o.began)
	for since/o.length >= periods {
		o.merge()
	}
	i := since / o.length
	o.count[i]++
	o.mean[i] += (float32(rtt) - o.mean[i]) / float32(o.count[i])
}

// merge makes one part of each two.
func (o *overTime) merge() {
	for i := range periods / 2 {
		a, b := 2*i, 2*i+1
		n := o.count[a] + o.count[b]
		mean := float32(0)
		if n > 0 {
			mean = (o.mean[a]*float32(o.count[a]) + o.mean[b]*float32(o.count[b])) / float32(n)
		}
		o.mean[i], o.count[i] = mean, n
	}
	clear(o.mean[periods/2:])
	clear(o.count[periods/2:])
	o.length *= 2
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
	if o.length == 0 {
		return nil
	}
	used := periods
	for o.count[used-1] == 0 {
		used--
	}
	r := &RTTOverTime{seconds(o.began - first), seconds(o.length), make([]float64, used), make([]uint32, used)}
	for i := range used {
		r.Means[i], r.Samples[i] = math.Round(float64(o.mean[i]))/1e9, o.count[i]
	}
	return r
}
