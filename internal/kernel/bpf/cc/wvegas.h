// SPDX-License-Identifier: GPL-2.0-only
// wVegas's window at the end of a round trip: Y. Cao, M. Xu, X. Fu, "Delay-based congestion control for multipath TCP"
// (2012): the weight, window and base-RTT adjustments, with the constants of draft-xu-mptcp-congestion-control. wvegas.go has the same arithmetic.
#pragma once
#include "arithmetic.h"

#define WAITING 8				// bits after the point of packets that wait in queues
#define WAITING_TOTAL (10 << WAITING)		// total_alpha
#define WAITING_LEAST (2 << WAITING)		// alpha's initial value, and the least
#define WAITING_SLOW_START (1 << WAITING)	// gamma
#define WINDOW_LIMIT ((1ULL << 24) - 1)
#define TIME_LIMIT ((1ULL << 31) - 1)		// us
#define RATE_LIMIT ((1ULL << 47) - 1)

// What a subflow knows at the end of a round trip. wvegas_round changes window, threshold, rate, alpha and queue.
struct round {
	__u64 window, threshold; // packets; below the threshold it is in slow start
	__u64 rtt, base;	 // us: the round's mean, and the least ever
	__u64 rate, others;	 // in equilibrium, packets in 2^32 us: of this subflow, and the sum of the others
	__u64 alpha;		 // packets, of WAITING bits: how many are to wait
	__u64 queue;		 // us: the least delay in queues since the last time that the queue was drained; 0: none yet
};

// wvegas_round reports whether it decided about the window. It does not in slow start, while the queue is short.
__noinline int wvegas_round(struct round *r)
{
	__u64 waiting, delay, rtt;

	if (!r)
		return 0;
	rtt = at_most(r->rtt, TIME_LIMIT);
	if (!rtt || r->base > rtt)
		return 0;
	delay = rtt - r->base;
	r->window = at_most(r->window, WINDOW_LIMIT);
	waiting = (r->window << WAITING) * delay / rtt; // Vegas' diff: (w/base - w/rtt) * base
	if (r->window < r->threshold) {
		if (waiting <= WAITING_SLOW_START)
			return 0;
		r->window = at_most(r->window, r->window * r->base / rtt + 1);
		r->threshold = r->window;
		return 1;
	}
	// A subflow's share of total_alpha is its share of the rate.
	if (waiting >= r->alpha) {
		r->rate = at_most((r->window << 32) / rtt, RATE_LIMIT);
		r->alpha = r->rate * WAITING_TOTAL / (r->rate + r->others + !r->rate);
		if (r->alpha < WAITING_LEAST)
			r->alpha = WAITING_LEAST;
	}
	if (waiting < r->alpha)
		r->window++;
	else if (waiting > r->alpha && r->window) {
		r->window--;
		if (r->window < r->threshold) // else slow start would undo it with the next ACK
			r->threshold = r->window;
	}
	// Others have filled the queue. It is drained, so that the least round trip can be measured.
	if (!r->queue || r->queue > delay)
		r->queue = delay;
	if (delay && delay >= 2 * r->queue) {
		r->window = r->window * r->base / (2 * rtt);
		r->queue = 0;
	}
	if (r->window < 2)
		r->window = 2;
	return 1;
}
