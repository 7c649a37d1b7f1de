//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Stands for a program at a cgroup's sockets that is not dcol's: it writes an option of its own in each segment and reads
// that of the other host, in one network namespace. It may set a socket's rate and user timeout.
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define SOL_SOCKET 1
#define SO_MAX_PACING_RATE 47
#define IPPROTO_TCP 6
#define TCP_USER_TIMEOUT 18
#define LENGTH 4
#define FLAG_SYN 0x02
#define OPTION (253 | LENGTH << 8 | 0xfa << 16 | 0xceu << 24) // an experiment's (RFC 6994)

// Set before loading. The cgroup may hold processes of many namespaces.
volatile const __u64 netns_cookie;
// What connections that this host opened get. Zero: they stay as they are.
volatile const __u32 rate, timeout; // bytes a second, ms
// SYNs go without its option.
volatile const bool spare_syns;

// Counts the segments with its option.
volatile __u64 written, found;

// What the last socket has that wrote.
volatile __u32 rate_now, timeout_now;

static __always_inline void also(struct bpf_sock_ops *ctx, int flags)
{
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | flags);
}

static __always_inline void set(struct bpf_sock_ops *ctx)
{
	__u64 wanted_rate = rate, wanted_timeout = timeout;

	if (wanted_rate)
		bpf_setsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &wanted_rate, sizeof(int));
	if (wanted_timeout)
		bpf_setsockopt(ctx, IPPROTO_TCP, TCP_USER_TIMEOUT, &wanted_timeout, sizeof(int));
}

static __always_inline void write(struct bpf_sock_ops *ctx)
{
	__u64 option = OPTION, has = 0;

	if (!bpf_store_hdr_opt(ctx, &option, LENGTH, 0))
		__sync_fetch_and_add(&written, 1);
	if (!ctx->is_fullsock)
		return;
	bpf_getsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &has, sizeof(int));
	rate_now = has;
	has = 0;
	bpf_getsockopt(ctx, IPPROTO_TCP, TCP_USER_TIMEOUT, &has, sizeof(int));
	timeout_now = has;
}

SEC("sockops")
int foreign(struct bpf_sock_ops *ctx)
{
	__u64 option = OPTION;

	if (bpf_get_netns_cookie(ctx) != netns_cookie)
		return 1;
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		also(ctx, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		set(ctx);
		also(ctx, BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		also(ctx, BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		if (!spare_syns || !(ctx->skb_tcp_flags & FLAG_SYN))
			bpf_reserve_hdr_opt(ctx, LENGTH, 0);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		if (!spare_syns || !(ctx->skb_tcp_flags & FLAG_SYN))
			write(ctx);
		break;
	case BPF_SOCK_OPS_PARSE_HDR_OPT_CB:
		if (bpf_load_hdr_opt(ctx, &option, LENGTH, 0) == LENGTH)
			__sync_fetch_and_add(&found, 1);
		break;
	}
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
