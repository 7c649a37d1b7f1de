// SPDX-License-Identifier: GPL-2.0-only
// The windows of the coupled congestion controls, as functions of the subflows' windows and round trips. model.go has
// the same arithmetic, and a test runs both on the same numbers. Windows are in packets. Increments are in 2^-32
// packets for each packet acknowledged.
//
// The functions are global, so that the verifier examines each once, without what it knows of the numbers. Otherwise it
// would follow every combination of branches for eight subflows.
#pragma once

#define SUBFLOWS 8 // as many as Linux allows a connection
#define FRACTION 8 // bits, of relative rates
#define LIMIT 0x7fffffffULL
#define ONE 32 // bits, of increments

// The subflows of a connection that are established and have a round trip. The own subflow is one of them.
struct subflows {
	__u64 window[SUBFLOWS];
	__u64 rtt[SUBFLOWS]; // any unit; 0: no subflow
	__u64 loss[SUBFLOWS]; // OLIA's l: bytes between losses
	__u64 own_window, own_rtt, own_loss;
};

static __always_inline __u64 at_most(__u64 a, __u64 b) { return a < b ? a : b; }

// relative returns a * own_rtt / rtt, and 0 where there is no subflow.
__noinline __u64 relative(__u64 a, __u64 own_rtt, __u64 rtt)
{
	return rtt ? at_most(a * own_rtt / rtt, LIMIT) : 0;
}

// share returns q / sum^2 as an increment. Both have FRACTION bits after the point, and are at most LIMIT.
__noinline __u64 share(__u64 q, __u64 sum) { return sum ? ((q << ONE) / sum << FRACTION) / sum : 0; }

// reno returns the increment 1/w.
static __always_inline __u64 reno(__u64 window) { return (1ULL << ONE) / (window + !window); }

// rate returns w/rtt of a subflow, in packets of one own round trip.
static __always_inline __u64 rate(const struct subflows *s, int i)
{
	return relative(at_most(s->window[i], LIMIT) << FRACTION, s->own_rtt, s->rtt[i]);
}

// total returns the sum of all rates.
__noinline __u64 total(const struct subflows *s)
{
	__u64 sum = 0;

	if (!s)
		return 0;
	for (int i = 0; i < SUBFLOWS; i++)
		if (s->rtt[i])
			sum += rate(s, i);
	return at_most(sum, LIMIT);
}

// RFC 6356, section 3, in packets. With x = w/rtt, alpha/w_total is max(w/rtt^2) / (sum x)^2. Rates are multiplied by
// the own round trip, which changes nothing in the quotient.
__noinline __s64 lia_increment(const struct subflows *s)
{
	__u64 best = 0, sum = 0, now, square;

	if (!s)
		return 0;
	for (int i = 0; i < SUBFLOWS; i++) {
		if (!s->rtt[i])
			continue;
		now = rate(s, i);
		sum += now;
		square = relative(now, s->own_rtt, s->rtt[i]);
		best = square > best ? square : best;
	}
	return at_most(share(best, at_most(sum, LIMIT)), reno(s->own_window));
}

// score returns l/rtt^2 of a subflow.
static __always_inline __u64 score(const struct subflows *s, int i)
{
	return relative(relative(at_most(s->loss[i], LIMIT), s->own_rtt, s->rtt[i]), s->own_rtt, s->rtt[i]);
}

__noinline __u64 best_score(const struct subflows *s)
{
	__u64 best = 0, now;

	if (!s)
		return 0;
	for (int i = 0; i < SUBFLOWS; i++) {
		if (!s->rtt[i])
			continue;
		now = score(s, i);
		best = now > best ? now : best;
	}
	return best;
}

// Each count has a function of its own, because the verifier follows every combination of counts.

// subflow_count returns the number of subflows.
__noinline __u64 subflow_count(const struct subflows *s)
{
	__u64 count = 0;

	if (!s)
		return 0;
	for (int i = 0; i < SUBFLOWS; i++)
		count += !!s->rtt[i];
	return count;
}

// widest_paths returns the number of subflows with the largest window.
__noinline __u64 widest_paths(const struct subflows *s, __u64 widest)
{
	__u64 count = 0;

	if (!s)
		return 0;
	for (int i = 0; i < SUBFLOWS; i++)
		count += !!s->rtt[i] & (s->window[i] == widest);
	return count;
}

// collected_paths returns the number of best subflows with a smaller window.
__noinline __u64 collected_paths(const struct subflows *s, __u64 widest, __u64 best)
{
	__u64 count = 0;

	if (!s)
		return 0;
	for (int i = 0; i < SUBFLOWS; i++)
		if (s->rtt[i] && s->window[i] != widest)
			count += score(s, i) == best;
	return count;
}

// Khalili et al., "MPTCP is not Pareto-optimal" (2012), equations 5 and 6: w/rtt^2 / (sum x)^2 + alpha/w. The best
// paths are those with the largest l/rtt^2, which is the square of the rate that TCP would have there. Paths with the
// largest windows give to the best paths whose windows are smaller.
__noinline __s64 olia_increment(const struct subflows *s)
{
	__u64 widest = 0, best, count, wide, collected, alpha, increment;

	if (!s)
		return 0;
	best = best_score(s);
	for (int i = 0; i < SUBFLOWS; i++)
		widest = s->rtt[i] && s->window[i] > widest ? s->window[i] : widest;
	collected = collected_paths(s, widest, best);
	increment = share(at_most(s->own_window << FRACTION, LIMIT), total(s));
	if (!collected)
		return increment;
	alpha = reno(s->own_window);
	count = subflow_count(s);
	if (s->own_window == widest) {
		wide = widest_paths(s, widest);
		return increment - alpha / (count * (wide + !wide));
	}
	if (at_most(s->own_loss, LIMIT) == best)
		return increment + alpha / (count * collected);
	return increment;
}

#define ALPHA 10 // bits after the point of BALIA's alpha
#define ALPHA_LIMIT (1ULL << 20)

// balia_alpha returns max x / x of draft-walid-mptcp-congestion-control, at least 1.
__noinline __u64 balia_alpha(const struct subflows *s)
{
	__u64 most = 0, now, own;

	if (!s)
		return 0;
	for (int i = 0; i < SUBFLOWS; i++) {
		if (!s->rtt[i])
			continue;
		now = relative(at_most(s->window[i], LIMIT) << ALPHA, s->own_rtt, s->rtt[i]);
		most = now > most ? now : most;
	}
	own = at_most(s->own_window, LIMIT);
	most /= own + !own;
	return at_most(most < 1 << ALPHA ? 1 << ALPHA : most, ALPHA_LIMIT);
}

// The draft, section 3: x/rtt / (sum x)^2 * (1 + alpha)/2 * (4 + alpha)/5, at most as much as Reno.
__noinline __s64 balia_increment(const struct subflows *s)
{
	__u64 alpha, increment;

	if (!s)
		return 0;
	alpha = balia_alpha(s);
	increment = share(at_most(s->own_window << FRACTION, LIMIT), total(s));
	increment = increment * ((1 << ALPHA) + alpha) >> (ALPHA + 1);
	increment = at_most(increment, 1ULL << ONE) * ((4 << ALPHA) + alpha) / 5 >> ALPHA;
	return at_most(increment, reno(s->own_window));
}

// balia_decrease returns the packets that a loss costs: w/2 * min(alpha, 1.5).
__noinline __u64 balia_decrease(const struct subflows *s)
{
	if (!s)
		return 0;
	return (at_most(s->own_window, LIMIT) / 2) * at_most(balia_alpha(s), 3 << (ALPHA - 1)) >> ALPHA;
}
