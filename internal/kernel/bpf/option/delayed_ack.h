// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The strategy of delayed ACKs: experiment id 0xdc13, the longest delay in 64ths of the minimum round trip, and the
// number of segments that may wait for an ACK. Linux keeps its own strategy in slow start, while data arrives out of
// order, and after retransmissions: it acknowledges at once there. It acknowledges every second segment in any case, and
// eBPF cannot make that more.
#pragma once
#include "framework.h"

#define DELAYED_ACK_LENGTH 6
#define DELAYED_ACK_ID 0xdc13
#define TCP_BPF_DELACK_MAX 1003
#define DELAYED_ACK_UNIT 64
#define DELAYED_ACK_SEGMENTS 2 // of Linux
// Of Linux, in microseconds: 200 ms, and two ticks of HZ=250 and HZ=100.
#define DELAY_MOST 200000
#define DELAY_LEAST 8000
#define DELAY_LEAST_COARSE 20000

volatile const __u32 delayed_ack_asked; // fraction, segments

static __always_inline __u64 delayed_ack_bytes(void) { return experiment(DELAYED_ACK_ID, delayed_ack_asked); }

static __always_inline void delayed_ack_apply(struct bpf_sock_ops *ctx, const __u64 *o, struct decision *e)
{
	__u32 fraction = value16(o) >> 8, segments = (__u8)value16(o), rtt = ctx->rtt_min, smoothed = ctx->srtt_us >> 3;
	__u64 wanted;
	__u64 delay;

	e->asked = fraction << 8 | segments;
	if (!fraction || !segments) {
		e->verdict = OUT_OF_BOUNDS;
		return;
	}
	if (!rtt || rtt == ~0U) // no packet of this host's was acknowledged
		rtt = smoothed;
	wanted = (__u64)rtt * fraction / DELAYED_ACK_UNIT;
	delay = wanted > DELAY_MOST ? DELAY_MOST : wanted < DELAY_LEAST ? DELAY_LEAST : wanted;
	e->error = bpf_setsockopt(ctx, IPPROTO_TCP, TCP_BPF_DELACK_MAX, &delay, sizeof(int));
	if (e->error && delay < DELAY_LEAST_COARSE) {
		delay = DELAY_LEAST_COARSE;
		e->error = bpf_setsockopt(ctx, IPPROTO_TCP, TCP_BPF_DELACK_MAX, &delay, sizeof(int));
	}
	e->granted = delay;
	e->verdict = e->error ? REFUSED : delay == wanted && segments == DELAYED_ACK_SEGMENTS ? GRANTED : CAPPED;
}
