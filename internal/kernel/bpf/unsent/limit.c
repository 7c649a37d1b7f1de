//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Bounds what waits unsent in each subflow of the MPTCP connections that are
// opened in one network namespace.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define IPPROTO_TCP 6
#define TCP_NOTSENT_LOWAT 25
#define OPTION_MPTCP 30 // RFC 8684
#define OPTION_LONGEST 40
#define ENOMSG 42
#define MOST 0x7fffffff // bytes, of an int

// Set before loading. The cgroup may hold processes of many namespaces.
volatile const __u64 netns_cookie;
volatile const __u32 least, windows; // bytes, congestion windows

static __always_inline void bound(struct bpf_sock_ops *ctx)
{
	__u64 want = (__u64)windows * ctx->snd_cwnd * ctx->mss_cache;
	int bytes = MOST;

	if (want < least)
		bytes = least;
	else if (want < MOST)
		bytes = want;
	bpf_setsockopt(ctx, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof(bytes));
}

SEC("sockops")
int limit_unsent(struct bpf_sock_ops *ctx)
{
	__u8 option[OPTION_LONGEST] = {OPTION_MPTCP};

	if (bpf_get_netns_cookie(ctx) != netns_cookie)
		return 1;
	if (ctx->op == BPF_SOCK_OPS_RTT_CB) { // asked for below
		bound(ctx);
		return 1;
	}
	if (ctx->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		return 1;
	// The SYN-ACK says whether it is a subflow. (The socket does too, but for that
	// one needs CAP_PERFMON.)
	if (bpf_load_hdr_opt(ctx, option, sizeof(option), 0) == -ENOMSG)
		return 1;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
	bound(ctx);
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
