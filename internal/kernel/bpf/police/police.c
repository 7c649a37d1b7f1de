//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Bounds the rate of TCP connections that come in, at tc's ingress: data above a token bucket is marked with CE
// (RFC 3168), so that its sender slows down, or dropped if its sender does not do ECN or goes on in spite of marks.
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// linux/pkt_cls.h needs headers that are not there for every architecture.
#define TC_ACT_UNSPEC (-1) // go on with the next filter
#define TC_ACT_SHOT 2

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IP_FRAGMENT 0x3fff // "more fragments" and the offset

#define ECN 3 // the bits of the ECN field

#define MAX_FLOWS 65536

// struct tcphdr of linux/tcp.h is bit fields; this is the start of its wire form.
struct tcp {
	__be16 source, dest;
	__be32 seq, ack;
	__u8 offset, flags;
};

// Addresses of IPv4 are in the last of the four words, after ::ffff.
struct tuple {
	__be32 src[4], dst[4];
	__be16 sport, dport;
};

struct bucket {
	struct bpf_spin_lock lock;
	__u32 ignores; // whether the sender ignores marks
	__u64 rate;    // bytes a second
	__s64 burst;   // bytes
	__s64 tokens;  // bytes; negative after a packet larger than what was left
	__u64 last;    // when tokens were last added, in ns; 0: no packet has come
	__s64 excess;  // bytes above the rate, at most burst; falls at the rate
	__u64 since;   // since when there is an excess, in ns; 0: there is none
	__u64 passed, marked, dropped; // packets with data
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FLOWS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tuple);
	__type(value, struct bucket);
} buckets SEC(".maps");

// The kernel empties it when no process has it open any more. Then everything passes.
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");

enum verdict { PASS, MARK, DROP };

#define SECOND 1000000000ull

// PATIENCE is the time within which marks must bring a sender below twice its rate. A sender that reacts lowers its
// rate by three tenths or more in each round trip.
#define PATIENCE (3 * SECOND)

// take takes a packet's bytes out of the bucket, unless the bucket is empty. A packet may be larger than what is left,
// because the kernel joins arriving packets to ones of up to 64 KiB (GRO).
static __always_inline enum verdict take(struct bucket *b, __u64 bytes, bool ecn, __u64 now)
{
	enum verdict verdict = PASS;
	bpf_spin_lock(&b->lock);
	if (!b->last)
		b->last = now;
	__u64 since = now - b->last;
	if (now < b->last) // another processor was quicker
		since = 0;
	if (since > SECOND)
		since = SECOND;
	__u64 more = since / 1000 * b->rate / 1000000;
	if (more) {
		b->tokens += more;
		b->excess -= more;
		b->last = now;
	}
	if (b->tokens > b->burst)
		b->tokens = b->burst;
	if (b->excess <= 0) {
		b->excess = 0;
		b->since = 0;
	}
	if (b->tokens > 0) {
		b->tokens -= bytes;
	} else if (!ecn || b->ignores) {
		verdict = DROP;
	} else {
		verdict = MARK;
		b->excess += bytes;
		if (b->excess > b->burst)
			b->excess = b->burst;
		if (!b->since)
			b->since = now;
		if (now > b->since + PATIENCE)
			b->ignores = 1;
	}
	bpf_spin_unlock(&b->lock);
	return verdict;
}

static __always_inline int load(struct __sk_buff *skb, __u32 at, void *to, __u32 size)
{
	return bpf_skb_load_bytes_relative(skb, at, to, size, BPF_HDR_START_NET);
}

// read fills the tuple of a TCP segment with data, and its ECN field. It returns the length of the packet from the IP
// header on, or 0.
static __always_inline __u32 read(struct __sk_buff *skb, struct tuple *t, __u8 *ecn)
{
	struct tcp tcp;
	__u32 at, all;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;
		if (load(skb, 0, &ip, sizeof ip) || ip.protocol != IPPROTO_TCP || ip.frag_off & bpf_htons(IP_FRAGMENT))
			return 0;
		at = ip.ihl * 4;
		all = bpf_ntohs(ip.tot_len);
		*ecn = ip.tos & ECN;
		t->src[2] = t->dst[2] = bpf_htonl(0xffff);
		t->src[3] = ip.saddr;
		t->dst[3] = ip.daddr;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;
		if (load(skb, 0, &ip, sizeof ip) || ip.nexthdr != IPPROTO_TCP)
			return 0;
		at = sizeof ip;
		all = at + bpf_ntohs(ip.payload_len);
		*ecn = ip.flow_lbl[0] >> 4 & ECN;
		__builtin_memcpy(t->src, &ip.saddr, sizeof t->src);
		__builtin_memcpy(t->dst, &ip.daddr, sizeof t->dst);
	} else {
		return 0;
	}
	if (load(skb, at, &tcp, sizeof tcp) || all <= at + (tcp.offset >> 4) * 4)
		return 0;
	t->sport = tcp.source;
	t->dport = tcp.dest;
	return all;
}

SEC("tc")
int police(struct __sk_buff *skb)
{
	struct tuple t = {};
	__u8 ecn = 0;
	__u32 bytes = read(skb, &t, &ecn);
	if (!bytes)
		return TC_ACT_UNSPEC;
	struct bucket *b = bpf_map_lookup_elem(&buckets, &t);
	if (!b)
		return TC_ACT_UNSPEC;
	// What a sender that does ECN repeats has no ECN field (RFC 3168, 6.1.5).
	enum verdict verdict = take(b, bytes, ecn || b->marked, bpf_ktime_get_ns());
	if (verdict == DROP) {
		__sync_fetch_and_add(&b->dropped, 1);
		return TC_ACT_SHOT;
	}
	if (verdict == MARK && bpf_skb_ecn_set_ce(skb))
		__sync_fetch_and_add(&b->marked, 1);
	else
		__sync_fetch_and_add(&b->passed, 1);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int enter(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &programs, 0);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
