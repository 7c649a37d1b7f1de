// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The request of a congestion control: experiment id 0xdc11 and a number of 16 bits. In the third ACK, or a later one.
#pragma once
#include "framework.h"

#define CONGESTION_LENGTH 6
#define CONGESTION_ID 0xdc11
#define CONGESTIONS 64
#define TCP_CONGESTION 13

volatile const __u32 congestion_asked; // number

struct congestion_name {
	char name[NAME];
};

// The congestion controls that are granted, by number. No name: it is not.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CONGESTIONS);
	__type(key, __u32);
	__type(value, struct congestion_name);
} congestions SEC(".maps");

static __always_inline __u64 congestion_bytes(void) { return experiment(CONGESTION_ID, congestion_asked); }

static __always_inline void congestion_apply(struct bpf_sock_ops *ctx, const __u64 *o, struct decision *e)
{
	__u64 number = value16(o);
	struct congestion_name *c = bpf_map_lookup_elem(&congestions, &number);

	e->asked = number;
	if (!c || !c->name[0]) {
		e->verdict = UNKNOWN;
		return;
	}
	e->error = bpf_setsockopt(ctx, IPPROTO_TCP, TCP_CONGESTION, c->name, NAME);
	e->granted = number;
	e->verdict = e->error ? REFUSED : GRANTED;
}
