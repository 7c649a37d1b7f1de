//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Does with each segment what Tran's thesis measures (2019, 5.4.5): inserts an option of four bytes in those that accepted
// connections send, parses it in those that come to connections that were opened, and then sets and reads a value of the socket.
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define IPPROTO_TCP 6
#define TCP_USER_TIMEOUT 18
#define TIMEOUT 60000 // ms
#define LENGTH 4
#define OPTION (253 | LENGTH << 8 | 0xfa << 16 | 0xceu << 24) // an experiment's (RFC 6994)

// Set before loading. The cgroup may hold processes of many namespaces.
volatile const __u64 netns_cookie;
volatile const bool inserts, parses, sets;

// The number of segments. Some may be missing: two processors may count at once, and must not wait for each other.
volatile __u64 inserted, parsed;

static __always_inline void also(struct bpf_sock_ops *ctx, int flags)
{
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | flags);
}

static __always_inline void write(struct bpf_sock_ops *ctx)
{
	__u64 option = OPTION;

	if (!bpf_store_hdr_opt(ctx, &option, LENGTH, 0))
		inserted++;
}

static __always_inline void parse(struct bpf_sock_ops *ctx)
{
	__u64 option = OPTION, timeout = TIMEOUT;

	if (bpf_load_hdr_opt(ctx, &option, LENGTH, 0) != LENGTH)
		return;
	parsed++;
	if (!sets)
		return;
	bpf_setsockopt(ctx, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(int));
	bpf_getsockopt(ctx, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(int));
}

SEC("sockops")
int segments(struct bpf_sock_ops *ctx)
{
	if (bpf_get_netns_cookie(ctx) != netns_cookie)
		return 1;
	switch (ctx->op) {
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		if (inserts)
			also(ctx, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		if (parses)
			also(ctx, BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		bpf_reserve_hdr_opt(ctx, LENGTH, 0);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write(ctx);
		break;
	case BPF_SOCK_OPS_PARSE_HDR_OPT_CB:
		parse(ctx);
		break;
	}
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
