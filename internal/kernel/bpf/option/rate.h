// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The request to send no faster on a subflow: experiment id 0xdc14 and 16 bits of kilobytes a second. It is sent on each
// subflow to a host that grants it.
#pragma once
#include "framework.h"
#include "../sockops/granted.h"

#define RATE_LENGTH 6
#define RATE_ID 0xdc14
#define RATE_UNIT 1000 // bytes a second
#define SOL_SOCKET 1
#define SO_MAX_PACING_RATE 47

volatile const __u32 rate_asked, rate_least; // units

static __always_inline __u64 rate_bytes(void) { return experiment(RATE_ID, rate_asked); }

// A bound that this host has for the subflow, and that is lower, stays. What is granted is noted for when it ends.
static __always_inline void rate_apply(struct bpf_sock_ops *ctx, const __u64 *o, struct decision *d)
{
	__u64 units = value16(o), granted = units, rate, has = 0;
	struct bpf_sock *sk = ctx->sk; // read once: two reads are two pointers to the verifier
	__u32 *noted;

	d->asked = units;
	if (!units) {
		d->verdict = OUT_OF_BOUNDS;
		return;
	}
	if (granted < rate_least)
		granted = rate_least;
	rate = granted * RATE_UNIT;
	d->granted = granted;
	noted = sk ? bpf_sk_storage_get(&granted_rates, sk, 0, BPF_SK_STORAGE_GET_F_CREATE) : 0;
	if (noted)
		*noted = rate;
	if (!bpf_getsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &has, sizeof(int)) && has && has <= rate)
		d->granted = (has + RATE_UNIT - 1) / RATE_UNIT;
	else
		d->error = bpf_setsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(int));
	d->verdict = d->error ? REFUSED : d->granted <= units ? GRANTED : CAPPED;
}
