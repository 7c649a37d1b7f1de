package track

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

// RTTPeriod has the round trips of a part of time. Times are in seconds after the connection's first packet.
type RTTPeriod struct {
	From    float64 `json:"from"`
	To      float64 `json:"to"`
	Mean    float64 `json:"mean"`
	Samples uint32  `json:"samples"`
}

// record returns the parts that have samples.
func (o *overTime) record(first int64) (list []RTTPeriod) {
	for i, n := range o.count {
		if n > 0 {
			from := o.began + int64(i)*o.length
			list = append(list, RTTPeriod{seconds(from - first), seconds(from + o.length - first), float64(o.mean[i]) / 1e9, n})
		}
	}
	return list
}
