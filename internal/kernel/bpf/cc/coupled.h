// SPDX-License-Identifier: GPL-2.0-only
// What the coupled congestion controls share: reading the connection's subflows, and growing the window by fractions.
#pragma once
#include "kernel.h"
#include "arithmetic.h"

// The programs' part of a socket, in icsk_ca_priv.
struct state {
	__s64 grown;		      // not yet a packet, of ONE bits
	__u64 last_loss, before_last; // bytes acknowledged then
	__s64 increment;	      // what the last look at the subflows gave
	__u32 until;		      // what was sent then: when all of it is acknowledged, a round trip has passed
	__u32 window;		      // then
};

// What happened at an ACK, for a test that compares it with the model.
struct record {
	__u64 socket;
	struct state before, after;
	__u32 ack, acked, next;		  // next: the next number to send
	__u32 window, threshold, clamp;	  // before
	__u32 window_after;
	__u32 limited, looked;
	struct subflows subflows; // if looked
};

#define CAST(type, p) ((struct type *)bpf_rdonly_cast((p), bpf_core_type_id_kernel(struct type)))

static __always_inline struct state *state_of(struct sock *sk)
{
	return (struct state *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

// between returns OLIA's l: the larger of the bytes between the last two losses and those since the last.
static __always_inline __u64 between(const struct state *s, __u64 acked)
{
	__u64 now = acked - s->last_loss, then = s->last_loss - s->before_last;

	return now > then ? now : then;
}

// look reads the subflows and reports whether there are at least two. The list is read without the connection's lock:
// loads of what is gone return zeros, and the walk is bounded. It only loads, because the verifier gives up on
// conditions on sums in it.
static __always_inline bool look(struct sock *sk, struct subflows *s)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk, *t;
	struct mptcp_subflow_context *context;
	struct list_head *head, *at;
	struct mptcp_sock *msk;
	const void *ours = tp->inet_conn.icsk_ca_ops;
	void *ulp;

	__builtin_memset(s, 0, sizeof(*s));
	s->own_window = tp->snd_cwnd;
	s->own_rtt = tp->srtt_us;
	s->own_loss = between(state_of(sk), tp->bytes_acked);
	if (!tp->is_mptcp || !s->own_rtt)
		return false;
	ulp = tp->inet_conn.icsk_ulp_data;
	if (!ulp)
		return false;
	context = CAST(mptcp_subflow_context, ulp);
	if (!context->conn)
		return false;
	msk = CAST(mptcp_sock, context->conn);
	head = &msk->conn_list;
	at = msk->conn_list.next;
	for (int i = 0; i < SUBFLOWS && at && at != head; i++) {
		t = CAST(tcp_sock, CAST(mptcp_subflow_context, (void *)at)->tcp_sock);
		s->window[i] = t->snd_cwnd;
		s->rtt[i] = t->srtt_us;
		s->loss[i] = t->inet_conn.icsk_ca_ops == ours ? between((void *)t->inet_conn.icsk_ca_priv, t->bytes_acked) : 0;
		if (((struct sock *)t)->__sk_common.skc_state != TCP_ESTABLISHED)
			s->rtt[i] = 0;
		at = CAST(list_head, at)->next;
	}
	return subflow_count(s) > 1;
}

// limited reports whether the window held back data, as tcp_is_cwnd_limited does.
static __always_inline bool limited(struct tcp_sock *tp)
{
	if (BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited))
		return true;
	return tp->snd_cwnd < tp->snd_ssthresh && tp->snd_cwnd < 2 * tp->max_packets_out;
}

// grow changes the window by an increment for each of some packets. Where it shrinks, two packets stay.
static __always_inline void grow(struct tcp_sock *tp, __s64 increment, __u32 acked)
{
	struct state *s = state_of((struct sock *)tp);
	__u32 window = tp->snd_cwnd;

	s->grown += increment * (__s64)(acked & 0xffff);
	if (s->grown >= 1LL << ONE) {
		__u64 whole = at_most((__u64)s->grown >> ONE, acked);

		s->grown &= (1LL << ONE) - 1;
		window = at_most(window + whole, tp->snd_cwnd_clamp);
	} else if (s->grown <= -(1LL << ONE)) {
		s->grown += 1LL << ONE;
		if (window > 2)
			window--;
	}
	if (window != tp->snd_cwnd)
		tp->snd_cwnd = window;
}

// RFC 6356, section 4, has the increase computed once in a round trip, or when the window changed: the other subflows'
// windows change as slowly.
static __always_inline bool looks_again(const struct state *s, const struct tcp_sock *tp, __u32 ack)
{
	return s->window != tp->snd_cwnd || (__s32)(ack - s->until) > 0;
}

// avoid changes the window at an ACK. increment is the algorithm's, for two or more subflows.
static __always_inline void avoid(struct sock *sk, __u32 ack, __u32 acked, __s64 (*increment)(const struct subflows *))
{
	struct record *r = recording ? bpf_ringbuf_reserve(&records, sizeof(*r), 0) : 0;
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct state *s = state_of(sk);
	bool may_grow = limited(tp);
	struct subflows all;

	if (r) {
		__builtin_memset(r, 0, sizeof(*r));
		r->socket = (__u64)sk;
		r->before = *s;
		r->ack = ack;
		r->acked = acked;
		r->next = tp->snd_nxt;
		r->window = tp->snd_cwnd;
		r->threshold = tp->snd_ssthresh;
		r->clamp = tp->snd_cwnd_clamp;
		r->limited = may_grow;
	}
	if (!may_grow)
		acked = 0;
	else if (tp->snd_cwnd < tp->snd_ssthresh)
		acked = tcp_slow_start(tp, acked);
	if (acked) {
		if (looks_again(s, tp, ack)) {
			s->increment = look(sk, &all) ? increment(&all) : reno(tp->snd_cwnd);
			s->until = tp->snd_nxt;
			s->window = tp->snd_cwnd;
			if (r) {
				r->looked = 1;
				r->subflows = all;
			}
		}
		grow(tp, s->increment, acked);
	}
	if (r) {
		r->after = *s;
		r->window_after = tp->snd_cwnd;
		bpf_ringbuf_submit(r, 0);
	}
}

static __always_inline void begin(struct sock *sk)
{
	struct state *s = state_of(sk);
	__u64 acked = ((struct tcp_sock *)sk)->bytes_acked;

	s->grown = 0;
	s->last_loss = acked;
	s->before_last = acked;
	s->window = 0; // so that the first ACK looks
}

// note_loss remembers where the losses were. A retransmission timeout follows a recovery without new data in between.
static __always_inline void note_loss(struct sock *sk, __u8 new_state)
{
	struct state *s = state_of(sk);
	__u64 acked = ((struct tcp_sock *)sk)->bytes_acked;

	if (new_state != TCP_CA_RECOVERY && new_state != TCP_CA_LOSS || acked == s->last_loss)
		return;
	s->before_last = s->last_loss;
	s->last_loss = acked;
}
