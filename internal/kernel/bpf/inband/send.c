//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The client's end of in-band detours: a sockops program puts the option into
// the SYNs of joins that are expected, a tc program at egress the
// authenticator.
#include "authenticator.h"
#include "syn.h"

// Words of eight bytes, see syn.h; what is first stands in the low half.
struct tuple {
	__u64 addresses; // local, remote; in the order of the network, as ports
	__u64 ports;	 // local, remote
};

static __always_inline struct tuple tuple(__be32 local, __be32 remote, __be16 local_port, __be16 remote_port)
{
	struct tuple t = {local | (__u64)remote << 32, local_port | (__u64)remote_port << 32};

	return t;
}

struct join {
	__be32 server;
	__be32 client; // as the waypoint sees it
	struct key key;
	bool authenticate;
	bool client_port; // arrives as it was sent
	bool written;	  // a SYN has left with the option
	__u32 calls;	  // which this program has turned on; the others that are on are other programs'
	__u64 expires;	  // since boot, in nanoseconds
};

#define CLOSED 7 // TCP_CLOSE, a state of the kernel's sockets
#define OUR_CALLS (BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG)

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct tuple);
	__type(value, struct join);
} joins SEC(".maps");

// Set before loading. The cgroup may hold processes of many namespaces.
volatile const __u64 netns_cookie;

// begin_calls has this program called for what the socket sends and for its states. Calls that other programs turn on later,
// while they are on for this one, cannot be told apart: they end with this program's.
static __always_inline void begin_calls(struct bpf_sock_ops *ctx, struct join *join)
{
	__u32 on = ctx->bpf_sock_ops_cb_flags;

	join->calls = OUR_CALLS & ~on;
	bpf_sock_ops_cb_flags_set(ctx, on | OUR_CALLS);
}

static __always_inline void end_calls(struct bpf_sock_ops *ctx, struct join *join)
{
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags & ~join->calls);
}

// A join that is over, but of which nobody heard, is not there: its ports may be another's by now.
static __always_inline struct join *expected(struct tuple *t)
{
	struct join *join = bpf_map_lookup_elem(&joins, t);

	return join && bpf_ktime_get_boot_ns() < join->expires ? join : 0;
}

// Retransmitted SYNs ask for options anew.
SEC("sockops")
int send_option(struct bpf_sock_ops *ctx)
{
	struct tuple t;
	struct join *join;

	if (bpf_get_netns_cookie(ctx) != netns_cookie)
		return 1;
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ctx->args[1] != CLOSED)
			return 1;
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		if (!opens(ctx->skb_tcp_flags))
			return 1;
		break;
	default:
		return 1;
	}
	t = tuple(ctx->local_ip4, ctx->remote_ip4, bpf_htons(ctx->local_port), ctx->remote_port >> 16);
	join = expected(&t);
	if (!join)
		return 1;
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		begin_calls(ctx, join);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		bpf_reserve_hdr_opt(ctx, DETOUR_SIZE, 0);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB: {
		__u64 option = OPTION_EXPERIMENT | DETOUR_SIZE << 8 | bpf_htons(DETOUR_ID) << 16 |
			       (__u64)join->server << 32;

		join->written = !bpf_store_hdr_opt(ctx, &option, sizeof(option), 0);
		break;
	}
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		end_calls(ctx, join);
		bpf_map_delete_elem(&joins, &t);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		// Given up, or its connection is gone: userspace hears nothing of that. What left
		// without the option it asks for itself.
		if (join->written)
			bpf_map_delete_elem(&joins, &t);
		break;
	}
	return 1;
}

static __always_inline int send(struct __sk_buff *skb, const __u32 l2)
{
	struct syn *s = read_syn(skb, l2);
	struct join *join;
	struct message m;
	struct tuple t;

	if (!s)
		return TC_ACT_UNSPEC;
	t = tuple(s->ip.saddr, s->ip.daddr, s->tcp.source, s->tcp.dest);
	join = expected(&t);
	if (!join || !join->authenticate)
		return TC_ACT_UNSPEC;
	if (read_options(skb, s) != DETOUR || !s->timestamps)
		return TC_ACT_UNSPEC;
	m = message(join->client, join->client_port ? s->tcp.source : 0, s->server, s->tcp.dest, s->tcp.seq,
		    s->time.tsval);
	write_tsecr(skb, s, bpf_htonl(authenticator(&join->key, &m)));
	return TC_ACT_UNSPEC;
}

SEC("tc")
int send_ethernet(struct __sk_buff *skb)
{
	return send(skb, ETHERNET);
}

SEC("tc")
int send_headerless(struct __sk_buff *skb)
{
	return send(skb, HEADERLESS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
