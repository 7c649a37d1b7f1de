//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Begins and ends to have TCP send keep-alive probes on single subflows of MPTCP connections
// that were opened in one network namespace.
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "../sockops/ends.h"
#include "../sockops/follow.h"

#define SOL_SOCKET 1
#define SO_KEEPALIVE 9
#define IPPROTO_TCP 6
#define TCP_KEEPIDLE 4
#define TCP_KEEPINTVL 5
#define TCP_KEEPCNT 6

// What is set on a socket.
struct setting {
	int on, idle, interval, count;
};

// What the socket had by its own program, while it is probed.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct setting);
} before SEC(".maps");

// Whether to begin to probe a subflow, else to end it. An entry leaves when it was carried out. Of too many, the oldest
// leave: those of subflows that ended first.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct subflow);
	__type(value, __u32);
} wishes SEC(".maps");

// Set before loading. The cgroup may hold processes of many namespaces.
volatile const __u64 netns_cookie;
volatile const struct setting probing;

// Whether there may be a wish, so that nothing is looked up as long as there was none.
volatile __u32 wished;

static __always_inline void set(struct bpf_sock_ops *ctx, __u64 idle, __u64 interval, __u64 count, __u64 on)
{
	// Before the timer is set by the others.
	bpf_setsockopt(ctx, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(int));
	bpf_setsockopt(ctx, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(int));
	bpf_setsockopt(ctx, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(int));
	// Of a socket with keep-alive on, this one sets the timer from when something last came.
	bpf_setsockopt(ctx, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(int));
}

static __always_inline void remember(struct bpf_sock_ops *ctx, struct setting *has)
{
	__u64 on = 0, idle = 0, interval = 0, count = 0; // ints in words of their own, see ends.h

	bpf_getsockopt(ctx, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(int));
	bpf_getsockopt(ctx, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(int));
	bpf_getsockopt(ctx, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(int));
	bpf_getsockopt(ctx, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(int));
	has->on = on;
	has->idle = idle;
	has->interval = interval;
	has->count = count;
}

static __always_inline void fulfil(struct bpf_sock_ops *ctx)
{
	struct subflow s = ends(ctx);
	__u32 *begin = bpf_map_lookup_elem(&wishes, &s);
	struct bpf_sock *sk = ctx->sk; // read once: two reads are two pointers to the verifier
	struct setting *has;

	if (!begin || !sk)
		return;
	has = bpf_sk_storage_get(&before, sk, 0, 0);
	if (*begin && !has) {
		has = bpf_sk_storage_get(&before, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!has)
			return; // until the next segment
		remember(ctx, has);
		set(ctx, probing.idle, probing.interval, probing.count, probing.on);
	} else if (!*begin && has) {
		set(ctx, has->idle, has->interval, has->count, has->on);
		bpf_sk_storage_delete(&before, sk);
	}
	bpf_map_delete_elem(&wishes, &s);
}

SEC("sockops")
int probe(struct bpf_sock_ops *ctx)
{
	if (bpf_get_netns_cookie(ctx) != netns_cookie)
		return 1;
	switch (ctx->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		follow(ctx);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		if (wished)
			fulfil(ctx);
		break;
	}
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
