//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Sets the highest rate and the user timeout of single subflows of MPTCP connections that were opened in one network
// namespace, when they send their next segment. Lower ones that the subflow has by others stay.
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "../sockops/ends.h"
#include "../sockops/follow.h"
#include "../sockops/granted.h"

#define SOL_SOCKET 1
#define SO_MAX_PACING_RATE 47
#define IPPROTO_TCP 6
#define TCP_USER_TIMEOUT 18

// What a subflow is to have. Zeros: what it has by others.
struct setting {
	__u32 rate;    // bytes a second
	__u32 timeout; // ms
};

// What a subflow has by this program, and what it has by others, such as peers that were granted a rate.
struct given {
	struct setting mine, others;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct given);
} given SEC(".maps");

// An entry leaves when it was carried out.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct subflow);
	__type(value, struct setting);
} settings SEC(".maps");

// Set before loading. The cgroup may hold processes of many namespaces.
volatile const __u64 netns_cookie;

// Counts the settings that sockets took and refused.
volatile __u64 taken, refused;

// Whether there may be a setting, so that nothing is looked up as long as there was none.
volatile __u32 wished;

// lower returns the lower of two bounds. Zero is none.
static __always_inline __u32 lower(__u32 a, __u32 b) { return a && (!b || a < b) ? a : b; }

// give sets a socket option to what is wanted, or leaves it if others have set a lower value. Granted is a bound that another
// program of ours gave, and may not have set because what the socket had was lower.
static __always_inline long give(struct bpf_sock_ops *ctx, int level, int name, __u32 wanted, __u32 granted, __u32 *mine,
				 __u32 *others)
{
	__u64 has = 0, value; // ints in words of their own, see ends.h
	long failed = bpf_getsockopt(ctx, level, name, &has, sizeof(int));

	if (failed)
		return failed;
	if ((__u32)has != *mine)
		*others = has;
	value = lower(lower(wanted, granted), *others);
	*mine = value;
	return value == has ? 0 : bpf_setsockopt(ctx, level, name, &value, sizeof(int));
}

static __always_inline void carry_out(struct bpf_sock_ops *ctx)
{
	struct subflow s = ends(ctx);
	struct setting *wanted = bpf_map_lookup_elem(&settings, &s);
	struct bpf_sock *sk = ctx->sk; // read once: two reads are two pointers to the verifier
	struct given *g;
	__u32 *granted;
	long failed;

	if (!wanted || !sk)
		return;
	g = bpf_sk_storage_get(&given, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!g)
		return; // until the next segment
	granted = bpf_sk_storage_get(&granted_rates, sk, 0, 0);
	failed = give(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, wanted->rate, granted ? *granted : 0, &g->mine.rate, &g->others.rate);
	failed |= give(ctx, IPPROTO_TCP, TCP_USER_TIMEOUT, wanted->timeout, 0, &g->mine.timeout, &g->others.timeout);
	__sync_fetch_and_add(&taken, !failed);
	__sync_fetch_and_add(&refused, !!failed);
	bpf_map_delete_elem(&settings, &s);
}

SEC("sockops")
int set_sending(struct bpf_sock_ops *ctx)
{
	if (bpf_get_netns_cookie(ctx) != netns_cookie)
		return 1;
	switch (ctx->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		follow(ctx);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		if (wished)
			carry_out(ctx);
		break;
	}
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
