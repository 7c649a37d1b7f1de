package cc

// subflow has the inputs of the algorithms for one subflow. Their units do not matter, but must be the same for all
// subflows of a connection.
type subflow struct {
	window, rtt uint64
	loss        uint64 // OLIA's l: bytes between losses
}

// The functions below are the programs' arithmetic (arithmetic.h) in Go, for reading and for tests. The kernel does not
// use them. Windows are in packets, increments in 2^-32 packets for each packet acknowledged.
const (
	most       = 0x7fffffff
	fraction   = 8
	one        = 32
	alphaBits  = 10
	alphaLimit = 1 << 20
)

// relative returns a * ownRTT / rtt.
func relative(a, ownRTT, rtt uint64) uint64 { return min(a*ownRTT/rtt, most) }

// share returns q / sum^2 as an increment.
func share(q, sum uint64) uint64 {
	if sum == 0 {
		return 0
	}
	return ((q << one) / sum << fraction) / sum
}

// renoIncrement returns 1/w.
func renoIncrement(window uint64) uint64 { return (1 << one) / max(window, 1) }

// rates returns w/rtt of each subflow, and the sum. The unit is one packet in own's round trip.
func rates(own subflow, all []subflow) (each []uint64, sum uint64) {
	for _, s := range all {
		rate := relative(min(s.window, most)<<fraction, own.rtt, s.rtt)
		each, sum = append(each, rate), sum+rate
	}
	return each, min(sum, most)
}

// lia implements RFC 6356, section 3: the smaller of max(w/rtt^2) / (sum w/rtt)^2 and 1/w.
func lia(own subflow, all []subflow) uint64 {
	each, sum := rates(own, all)
	best := uint64(0)
	for i, s := range all {
		best = max(best, relative(each[i], own.rtt, s.rtt))
	}
	return min(share(best, sum), renoIncrement(own.window))
}

// olia implements equations 5 and 6 of Khalili et al. (2012): w/rtt^2 / (sum w/rtt)^2 + alpha/w.
func olia(own subflow, all []subflow) int64 {
	score := func(s subflow) uint64 {
		return relative(relative(min(s.loss, most), own.rtt, s.rtt), own.rtt, s.rtt)
	}
	_, sum := rates(own, all)
	var widest, best uint64
	for _, s := range all {
		widest, best = max(widest, s.window), max(best, score(s))
	}
	var wide, collected uint64
	for _, s := range all {
		if s.window == widest {
			wide++
		} else if score(s) == best {
			collected++
		}
	}
	increment := int64(share(min(own.window<<fraction, most), sum))
	alpha, count := renoIncrement(own.window), uint64(len(all))
	switch {
	case collected == 0:
		return increment
	case own.window == widest:
		return increment - int64(alpha/(count*max(wide, 1)))
	case score(own) == best:
		return increment + int64(alpha/(count*collected))
	}
	return increment
}

// baliaAlpha returns max x / x, with alphaBits after the point.
func baliaAlpha(own subflow, all []subflow) uint64 {
	fastest := uint64(0)
	for _, s := range all {
		fastest = max(fastest, relative(min(s.window, most)<<alphaBits, own.rtt, s.rtt))
	}
	return min(max(fastest/max(min(own.window, most), 1), 1<<alphaBits), alphaLimit)
}

// balia implements draft-walid-mptcp-congestion-control, section 3: x/rtt / (sum x)^2 * (1+alpha)/2 * (4+alpha)/5.
func balia(own subflow, all []subflow) uint64 {
	_, sum := rates(own, all)
	alpha := baliaAlpha(own, all)
	increment := share(min(own.window<<fraction, most), sum)
	increment = increment * (1<<alphaBits + alpha) >> (alphaBits + 1)
	increment = min(increment, 1<<one) * (4<<alphaBits + alpha) / 5 >> alphaBits
	return min(increment, renoIncrement(own.window))
}

// baliaDecrease returns the number of packets by which a loss shrinks the window: w/2 * min(alpha, 1.5).
func baliaDecrease(own subflow, all []subflow) uint64 {
	return min(own.window, most) / 2 * min(baliaAlpha(own, all), 3<<(alphaBits-1)) >> alphaBits
}
