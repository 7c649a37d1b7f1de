//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only
// wVegas as a congestion control of the kernel. See wvegas.h for its equations.
#include "coupled.h"
#include "wvegas.h"

// The program's part of a socket, in icsk_ca_priv.
struct vegas {
	__u64 sum, rate; // of the round's measurements, us; see struct round
	__u32 count, end;
	__u32 base, alpha, queue;
	__u32 paused; // after a loss or a pause, until the next round begins
};

// What happened at an ACK, for a test that compares it with the model.
struct vegas_record {
	__u64 socket;
	struct vegas before, after;
	__u64 others;
	__u32 ack, acked, next;		 // next: the next number to send
	__u32 window, threshold, clamp;	 // before
	__u32 window_after, threshold_after;
	__u32 limited, spare;
};

static __always_inline struct vegas *vegas_of(struct sock *sk) { return (struct vegas *)((struct inet_connection_sock *)sk)->icsk_ca_priv; }

// start begins a round with what is sent next.
static __always_inline void start(struct sock *sk)
{
	struct vegas *v = vegas_of(sk);

	v->sum = 0;
	v->count = 0;
	v->end = ((struct tcp_sock *)sk)->snd_nxt;
}

SEC("struct_ops")
void BPF_PROG(wvegas_init, struct sock *sk)
{
	struct vegas *v = vegas_of(sk);

	v->base = ~0U;
	v->alpha = WAITING_LEAST;
	v->rate = 0;
	v->queue = 0;
	v->paused = 0;
	start(sk);
}

SEC("struct_ops")
void BPF_PROG(wvegas_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct vegas *v = vegas_of(sk);
	__s32 rtt = sample->rtt_us;

	if (rtt < 0)
		return;
	rtt++; // never 0
	if (rtt < v->base)
		v->base = rtt;
	v->sum += rtt;
	v->count++;
}

SEC("struct_ops")
void BPF_PROG(wvegas_set_state, struct sock *sk, __u8 new_state)
{
	vegas_of(sk)->paused = new_state != TCP_CA_OPEN;
	if (new_state == TCP_CA_OPEN)
		start(sk);
}

SEC("struct_ops")
void BPF_PROG(wvegas_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	if (event == CA_EVENT_CWND_RESTART || event == CA_EVENT_TX_START)
		start(sk);
}

// others returns the sum of the other subflows' rates.
static __always_inline __u64 others(struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk, *t;
	struct mptcp_subflow_context *context;
	const void *ours = tp->inet_conn.icsk_ca_ops;
	struct list_head *head, *at;
	struct mptcp_sock *msk;
	__u64 sum = 0;
	void *ulp;

	ulp = tp->inet_conn.icsk_ulp_data;
	if (!tp->is_mptcp || !ulp)
		return 0;
	context = CAST(mptcp_subflow_context, ulp);
	if (!context->conn)
		return 0;
	msk = CAST(mptcp_sock, context->conn);
	head = &msk->conn_list;
	at = msk->conn_list.next;
	for (int i = 0; i < SUBFLOWS && at && at != head; i++) {
		t = CAST(tcp_sock, CAST(mptcp_subflow_context, (void *)at)->tcp_sock);
		if ((void *)t != (void *)tp && t->inet_conn.icsk_ca_ops == ours &&
		    ((struct sock *)t)->__sk_common.skc_state == TCP_ESTABLISHED)
			sum += at_most(((struct vegas *)t->inet_conn.icsk_ca_priv)->rate, RATE_LIMIT);
		at = CAST(list_head, at)->next;
	}
	return sum;
}

// step changes the window at an ACK. sum is of the other subflows' rates, where it was asked for.
static __always_inline void step(struct sock *sk, __u32 ack, __u32 acked, __u64 *sum)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct vegas *v = vegas_of(sk);
	bool ended = (__s32)(ack - v->end) > 0;
	struct round r;

	if (v->paused || ended && v->count <= 2) { // the mean would be the delay of one ACK
		if (!v->paused)
			start(sk);
		tcp_reno_cong_avoid(sk, ack, acked);
		return;
	}
	if (ended) {
		r.window = tp->snd_cwnd;
		r.threshold = tp->snd_ssthresh;
		r.rtt = v->sum / v->count;
		r.base = v->base;
		r.rate = v->rate;
		r.others = *sum = others(sk);
		r.alpha = v->alpha;
		r.queue = v->queue;
		start(sk);
		if (wvegas_round(&r)) {
			v->rate = r.rate;
			v->alpha = r.alpha;
			v->queue = r.queue;
			tp->snd_ssthresh = at_most(r.threshold, 0x7fffffff);
			tp->snd_cwnd = at_most(r.window, tp->snd_cwnd_clamp);
			return;
		}
	}
	if (tp->snd_cwnd < tp->snd_ssthresh && limited(tp))
		tcp_slow_start(tp, acked);
}

SEC("struct_ops")
void BPF_PROG(wvegas_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct vegas_record *r = recording ? bpf_ringbuf_reserve(&records, sizeof(*r), 0) : 0;
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	__u64 sum = 0;

	if (r) {
		__builtin_memset(r, 0, sizeof(*r));
		r->socket = (__u64)sk;
		r->before = *vegas_of(sk);
		r->ack = ack;
		r->acked = acked;
		r->next = tp->snd_nxt;
		r->window = tp->snd_cwnd;
		r->threshold = tp->snd_ssthresh;
		r->clamp = tp->snd_cwnd_clamp;
		r->limited = limited(tp);
	}
	step(sk, ack, acked, &sum);
	if (r) {
		r->after = *vegas_of(sk);
		r->others = sum;
		r->window_after = tp->snd_cwnd;
		r->threshold_after = tp->snd_ssthresh;
		bpf_ringbuf_submit(r, 0);
	}
}

SEC("struct_ops")
__u32 BPF_PROG(wvegas_ssthresh, struct sock *sk) { return tcp_reno_ssthresh(sk); }

SEC("struct_ops")
__u32 BPF_PROG(wvegas_undo_cwnd, struct sock *sk) { return tcp_reno_undo_cwnd(sk); }

SEC(".struct_ops.link")
struct tcp_congestion_ops wvegas = {
	.init = (void *)wvegas_init,
	.set_state = (void *)wvegas_set_state,
	.cwnd_event = (void *)wvegas_cwnd_event,
	.pkts_acked = (void *)wvegas_pkts_acked,
	.cong_avoid = (void *)wvegas_cong_avoid,
	.ssthresh = (void *)wvegas_ssthresh,
	.undo_cwnd = (void *)wvegas_undo_cwnd,
	.name = "wvegas",
	.flags = TCP_CONG_NON_RESTRICTED,
};

char _license[] SEC("license") = "GPL";
