//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Sets the highest rate and the user timeout of single subflows of MPTCP connections that were opened in one network
// namespace, when they send their next segment.
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "../sockops/ends.h"
#include "../sockops/follow.h"

#define SOL_SOCKET 1
#define SO_MAX_PACING_RATE 47
#define IPPROTO_TCP 6
#define TCP_USER_TIMEOUT 18
#define UNLIMITED 0xffffffff

// What a subflow is to have.
struct setting {
	__u32 rate;    // bytes a second; UNLIMITED: no bound
	__u32 timeout; // ms; 0: the kernel's
};

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

static __always_inline void carry_out(struct bpf_sock_ops *ctx)
{
	struct subflow s = ends(ctx);
	struct setting *wanted = bpf_map_lookup_elem(&settings, &s);
	__u64 rate, timeout; // ints in words of their own, see ends.h
	long failed;

	if (!wanted)
		return;
	rate = wanted->rate;
	timeout = wanted->timeout;
	failed = bpf_setsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(int));
	failed |= bpf_setsockopt(ctx, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(int));
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
