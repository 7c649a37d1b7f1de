// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The User Timeout Option (RFC 5482): kind 28, length 4, a bit for minutes and 15 bits of time. It is not negotiated.
#pragma once
#include "framework.h"

#define USER_TIMEOUT_KIND 28
#define USER_TIMEOUT_LENGTH 4
#define TCP_USER_TIMEOUT 18
#define MILLISECONDS 1000 // in a second

volatile const __u32 user_timeout_asked; // as in the option
volatile const __u32 user_timeout_least, user_timeout_most; // seconds

static __always_inline long user_timeout_find(struct bpf_sock_ops *ctx, __u64 *o)
{
	o[0] = USER_TIMEOUT_KIND;
	return bpf_load_hdr_opt(ctx, o, LONGEST, 0);
}

static __always_inline __u64 user_timeout_bytes(void)
{
	return USER_TIMEOUT_KIND | USER_TIMEOUT_LENGTH << 8 | (__u64)bpf_htons(user_timeout_asked) << 16;
}

// A shorter timeout that the subflow has already stays.
static __always_inline void user_timeout_apply(struct bpf_sock_ops *ctx, const __u64 *o, struct decision *e)
{
	__u16 field = bpf_ntohs(o[0] >> 16);
	__u32 seconds = field & 0x7fff, granted;
	__u64 milliseconds, has = 0;

	if (field & 0x8000)
		seconds *= 60;
	e->asked = seconds;
	if (!seconds) {
		e->verdict = OUT_OF_BOUNDS;
		return;
	}
	granted = seconds < user_timeout_least ? user_timeout_least : seconds;
	granted = granted > user_timeout_most ? user_timeout_most : granted;
	milliseconds = granted * MILLISECONDS;
	e->granted = granted;
	if (!bpf_getsockopt(ctx, IPPROTO_TCP, TCP_USER_TIMEOUT, &has, sizeof(int)) && has && has <= milliseconds)
		granted = e->granted = (has + MILLISECONDS - 1) / MILLISECONDS;
	else
		e->error = bpf_setsockopt(ctx, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(int));
	e->verdict = e->error ? REFUSED : granted == seconds ? GRANTED : CAPPED;
}
