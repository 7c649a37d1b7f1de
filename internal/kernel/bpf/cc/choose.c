//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Sets the congestion control of connections, by the server's port and the peer's address. One program for each
// cgroup; they share which connections have been decided, so that the innermost cgroup's decides.
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define IPPROTO_TCP 6
#define TCP_CONGESTION 13
#define NAME 16
#define RULES 64
#define AF_INET6 10

// Set before loading. The cgroup may hold processes of many namespaces.
volatile const __u64 netns_cookie;
volatile const __u64 number; // of this program

// The rules of this program, in order. The first that is not used ends them.
struct rule {
	__u32 address[4], mask[4]; // in network order; IPv4 addresses as ::ffff:0:0/96
	__u32 first_port, last_port, used, set, refused;
	char name[NAME];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RULES);
	__type(key, __u32);
	__type(value, struct rule);
} rules SEC(".maps");

// The peer for which a connection's congestion control was decided, and the rule that decided. A socket may connect again,
// to another.
struct peer {
	__u64 address[2];
	__u64 ports;
	__u64 rule, number; // number of the rule's program
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct peer);
} decided SEC(".maps");

// All on the stack are words of eight bytes: without CAP_PERFMON, Linux 6.1 refuses to have a part of a word written whose
// value it follows.
struct walk {
	__u64 address[2];
	__u64 port; // the server's
	__u64 chosen;
};

// Two words at a time, which the verifier takes one by one only.
static __always_inline __u64 two(volatile __u32 *words)
{
	__u32 first = words[0], second = words[1];

	return first | (__u64)second << 32;
}

static __always_inline bool among(const struct walk *w, struct rule *r)
{
	return (w->address[0] & two(&r->mask[0])) == two(&r->address[0]) &&
	       (w->address[1] & two(&r->mask[2])) == two(&r->address[2]);
}

static long consider(__u32 i, struct walk *w)
{
	struct rule *r = bpf_map_lookup_elem(&rules, &i);

	if (!r || !r->used)
		return 1;
	if (w->port < r->first_port || w->port > r->last_port)
		return 0;
	if (!among(w, r))
		return 0;
	w->chosen = i;
	return 1;
}

// is_for reports whether the decision was made for this peer, in an operation of this kind. A new entry has no port.
static __always_inline bool is_for(const struct peer *p, const struct walk *w, __u64 op)
{
	return p->ports == w->port + (op << 16) && p->address[0] == w->address[0] && p->address[1] == w->address[1];
}

// Sets the congestion control again if the route's own has replaced it: the kernel looks at the route after
// BPF_SOCK_OPS_TCP_CONNECT_CB. A route that locks its own refuses.
static __always_inline int keep(struct bpf_sock_ops *ctx, const struct walk *w, struct bpf_sock *sk)
{
	struct peer *p = bpf_sk_storage_get(&decided, sk, 0, 0);
	__u64 now[NAME / 8] = {}, chosen, failed;
	struct rule *r;

	if (!p || p->number != number || !is_for(p, w, BPF_SOCK_OPS_TCP_CONNECT_CB))
		return 1;
	chosen = p->rule;
	r = bpf_map_lookup_elem(&rules, &chosen);
	if (!r || bpf_getsockopt(ctx, IPPROTO_TCP, TCP_CONGESTION, now, NAME))
		return 1;
	if (now[0] == two((volatile __u32 *)&r->name[0]) && now[1] == two((volatile __u32 *)&r->name[8]))
		return 1;
	failed = !!bpf_setsockopt(ctx, IPPROTO_TCP, TCP_CONGESTION, r->name, NAME);
	__sync_fetch_and_add(&r->refused, failed);
	__sync_fetch_and_add(&r->set, -failed);
	return 1;
}

SEC("sockops")
int choose(struct bpf_sock_ops *ctx)
{
	struct walk w = {.chosen = RULES};
	struct peer *p;
	struct bpf_sock *sk;
	struct rule *r;
	// All are read always: from a choice of two fields the compiler makes a read at a computed place, which is refused.
	volatile __u64 local_port = ctx->local_port, remote_port = ctx->remote_port, remote_ip4 = ctx->remote_ip4;
	__u64 failed;

	if (bpf_get_netns_cookie(ctx) != netns_cookie)
		return 1;
	if (ctx->op == BPF_SOCK_OPS_TCP_CONNECT_CB || ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		w.port = bpf_ntohl(remote_port);
	else if (ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		w.port = local_port;
	else
		return 1;
	if (ctx->family == AF_INET6) {
		w.address[0] = two(&ctx->remote_ip6[0]);
		w.address[1] = two(&ctx->remote_ip6[2]);
	} else {
		w.address[1] = bpf_htonl(0xffff) | remote_ip4 << 32;
	}
	sk = ctx->sk; // read once: two reads are two pointers to the verifier
	if (!sk)
		return 1;
	if (ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		return keep(ctx, &w, sk);
	bpf_loop(RULES, consider, &w, 0);
	if (w.chosen >= RULES)
		return 1;
	r = bpf_map_lookup_elem(&rules, &w.chosen);
	if (!r)
		return 1;
	p = bpf_sk_storage_get(&decided, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!p)
		return 1;
	if (is_for(p, &w, ctx->op))
		return 1;
	p->ports = w.port + ((__u64)ctx->op << 16);
	p->address[0] = w.address[0];
	p->address[1] = w.address[1];
	p->rule = w.chosen;
	p->number = number;
	failed = !!bpf_setsockopt(ctx, IPPROTO_TCP, TCP_CONGESTION, r->name, NAME);
	// Both are counted always: without CAP_PERFMON, the place in a map may not depend on a condition.
	__sync_fetch_and_add(&r->refused, failed);
	__sync_fetch_and_add(&r->set, !failed);
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
