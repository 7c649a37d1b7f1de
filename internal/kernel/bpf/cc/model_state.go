package cc

// state is the part of a socket that LIA, OLIA and BALIA use (struct state of coupled.h).
type state struct {
	Grown                int64 // growth of less than a packet so far, with one bits after the point
	LastLoss, BeforeLast uint64
	Increment            int64  // result of the last look at the subflows
	Until                uint32 // next sequence number at that look
	Window               uint32 // window at that look
}

// socket has the state of a socket at an ACK, apart from that of the algorithm.
type socket struct {
	Ack, Acked, Next         uint32 // Next is the next sequence number to send
	Window, Threshold, Clamp uint32
	Limited                  bool // the window held data back
}

// looks reports whether the state of all subflows must be read: the window changed, or a round trip has passed since
// the last look (RFC 6356, section 4).
func (s state) looks(window, ack uint32) bool { return s.Window != window || int32(ack-s.Until) > 0 }

// avoid returns the state and the window after an ACK. increment reads all subflows and returns the increment for the
// window.
func (s state) avoid(k socket, increment func() int64) (after state, window uint32) {
	window, acked := k.Window, k.Acked
	switch {
	case !k.Limited:
		return s, window
	case window < k.Threshold:
		window, acked = slowStart(window, k.Threshold, k.Clamp, acked)
	}
	if acked == 0 {
		return s, window
	}
	if s.looks(window, k.Ack) {
		s.Increment, s.Until, s.Window = increment(), k.Next, window
	}
	return s.grow(window, k.Clamp, acked)
}

// slowStart returns the window after packets were acknowledged, and how many of the packets remain when slow start
// ends.
func slowStart(window, threshold, clamp, acked uint32) (after, left uint32) {
	after = min(window+acked, threshold)
	return min(after, clamp), acked - (after - window)
}

// grow adds the increment for each packet acknowledged. It does not shrink the window below two packets.
func (s state) grow(window, clamp, acked uint32) (state, uint32) {
	s.Grown += s.Increment * int64(acked&0xffff)
	switch {
	case s.Grown >= 1<<one:
		window = uint32(min(uint64(window)+min(uint64(s.Grown)>>one, uint64(acked)), uint64(clamp)))
		s.Grown &= 1<<one - 1
	case s.Grown <= -(1 << one):
		s.Grown += 1 << one
		if window > 2 {
			window--
		}
	}
	return s, window
}

// vegas is the part of a socket that wVegas uses (struct vegas of wvegas.c).
type vegas struct {
	Sum, Rate          uint64 // Sum of the round's RTTs in µs; Rate is as in round
	Count, End         uint32
	Base, Alpha, Queue uint32
	Paused             uint32 // 1 after a loss or a pause
}

// avoid returns the state, the window and the threshold after an ACK. reno reports that Reno decides about the window,
// which is then unchanged.
func (v vegas) avoid(k socket, others uint64) (after vegas, window, threshold uint32, reno bool) {
	ended := int32(k.Ack-v.End) > 0
	if v.Paused != 0 || ended && v.Count <= 2 {
		if v.Paused == 0 {
			v.Sum, v.Count, v.End = 0, 0, k.Next
		}
		return v, k.Window, k.Threshold, true
	}
	if ended {
		r, decides := wvegas(round{
			window: uint64(k.Window), threshold: uint64(k.Threshold), rtt: v.Sum / uint64(v.Count), base: uint64(v.Base),
			rate: v.Rate, others: others, alpha: uint64(v.Alpha), queue: uint64(v.Queue),
		})
		v.Sum, v.Count, v.End = 0, 0, k.Next
		if decides {
			v.Rate, v.Alpha, v.Queue = r.rate, uint32(r.alpha), uint32(r.queue)
			return v, uint32(min(r.window, uint64(k.Clamp))), uint32(min(r.threshold, 0x7fffffff)), false
		}
	}
	window = k.Window
	if window < k.Threshold && k.Limited {
		window, _ = slowStart(window, k.Threshold, k.Clamp, k.Acked)
	}
	return v, window, k.Threshold, false
}
