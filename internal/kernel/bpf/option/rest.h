// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Some firewalls drop SYNs that have unknown options. So only the first SYN of a connection announces. If it is lost and the
// second one is answered, nothing is announced to the server's network for a while: the network rests. The first rest is
// short, because the SYN may have been lost for another reason. Each further rest is twice as long. An announcement that is
// answered ends the rests. If several networks fail in a row, the firewall is probably near this host. Then nothing is
// announced to the whole Internet for a while.
#pragma once
#include "framework.h"

#define SECOND 1000000000ULL
#define REST_LEAST (10 * 60 * SECOND)
#define REST_MOST (24 * 60 * 60 * SECOND)
#define RESTS_IN_A_ROW 4

struct rest {
	__u64 until;  // nanoseconds since this host's start
	__u64 length; // nanoseconds
	__u64 row;    // the row that the network was last counted in
};

// The key is the address of a network: /24 in IPv4, /48 in IPv6.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct address);
	__type(value, struct rest);
} rests SEC(".maps");

// Private networks and such. Their servers are not behind a firewall between this host and the Internet.
struct networks inside SEC(".maps");

// The rest of the whole Internet, the number of networks that failed in a row, and the number of earlier rows. If two
// processors write at once, a row may be counted wrong, which does no harm.
__u64 all_until, all_length, unheard_networks, row;

static __always_inline struct address network(struct bpf_sock_ops *ctx)
{
	struct address a = remote(ctx);

	if (!a.words[0] && (__u32)a.words[1] == bpf_htonl(0xffff)) {
		a.words[1] &= ~((__u64)bpf_htonl(0xff) << 32);
	} else {
		a.words[0] &= (1ULL << 48) - 1;
		a.words[1] = 0;
	}
	return a;
}

// rests_now reports whether nothing is announced to the peer's network.
static __noinline bool rests_now(struct bpf_sock_ops *ctx)
{
	struct address n = network(ctx);
	__u64 now = bpf_ktime_get_boot_ns();
	struct rest *r = bpf_map_lookup_elem(&rests, &n);

	return (r && now < r->until) || (now < all_until && !among(&inside, ctx));
}

// heard notes that a SYN with an announcement was answered.
static __noinline int heard(struct bpf_sock_ops *ctx)
{
	struct address n = network(ctx);

	bpf_map_delete_elem(&rests, &n);
	if (!unheard_networks || among(&inside, ctx))
		return 0;
	unheard_networks = all_until = all_length = 0;
	row++;
	return 0;
}

static __always_inline __u64 longer(__u64 length)
{
	length = length ? 2 * length : REST_LEAST;
	return length < REST_MOST ? length : REST_MOST;
}

// unheard notes that a SYN with an announcement was lost, and that the next one, without it, was answered. It ignores
// connections that began before a rest.
static __noinline int unheard(struct bpf_sock_ops *ctx)
{
	struct address n = network(ctx);
	__u64 now = bpf_ktime_get_boot_ns();
	struct rest *old = bpf_map_lookup_elem(&rests, &n), r = {.length = REST_LEAST};
	bool counted = false;

	if (rests_now(ctx))
		return 0;
	if (old) {
		r.length = longer(old->length);
		counted = old->row == row;
	}
	r.until = now + r.length;
	r.row = row;
	bpf_map_update_elem(&rests, &n, &r, BPF_ANY);
	if (among(&inside, ctx))
		return 0;
	if (!counted)
		unheard_networks++;
	if (unheard_networks < RESTS_IN_A_ROW)
		return 0;
	all_length = longer(all_length);
	all_until = now + all_length;
	return 0;
}
