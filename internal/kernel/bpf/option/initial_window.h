// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The request of an initial congestion window: experiment id 0xdc12 and 16 bits of segments. In the SYN+ACK or the third
// ACK, never in the SYN, whose sender may not be who it says. Only from trusted networks.
#pragma once
#include "framework.h"

#define INITIAL_WINDOW_LENGTH 6
#define INITIAL_WINDOW_ID 0xdc12
#define TCP_BPF_IW 1001

volatile const __u32 initial_window_asked, initial_window_most; // segments

static __always_inline __u64 initial_window_bytes(void) { return experiment(INITIAL_WINDOW_ID, initial_window_asked); }

static __always_inline void initial_window_apply(struct bpf_sock_ops *ctx, const __u64 *o, struct decision *e)
{
	__u64 segments = value16(o), granted = segments;

	e->asked = segments;
	if (!segments) {
		e->verdict = OUT_OF_BOUNDS;
		return;
	}
	if (ctx->op == BPF_SOCK_OPS_PARSE_HDR_OPT_CB) { // after the handshake
		e->verdict = LATE;
		return;
	}
	if (!among(&trusted, ctx)) {
		e->verdict = UNTRUSTED;
		return;
	}
	if (granted > initial_window_most)
		granted = initial_window_most;
	e->error = bpf_setsockopt(ctx, IPPROTO_TCP, TCP_BPF_IW, &granted, sizeof(int));
	e->granted = granted;
	e->verdict = e->error ? LATE : granted == segments ? GRANTED : CAPPED;
}
