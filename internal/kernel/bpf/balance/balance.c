//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Chooses among the next hops of the kernel's multipath routes, at TCX's or tc's ingress. The program sets the packet's hash,
// from which the kernel then takes its next hop. Packets whose hash it does not set are hashed by the kernel.
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// linux/pkt_cls.h needs headers that are not there for every architecture.
#define TC_ACT_UNSPEC (-1) // go on with the next filter; TCX_NEXT of linux/bpf.h has the same value

#define PACKET_HOST 0
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IP_FRAGMENT 0x3fff // "more fragments" and the offset

#define MAX_PREFIXES 65536
#define MAX_HOPS 64 // a power of two
#define TTLS 256
#define MAX_KEYS 34

enum cipher { SPECK, SKIP32, RC5 };

// The constants of the network and of this router. They are set before the program is loaded.
const volatile __u32 cipher;
const volatile __u32 radix = 2;
const volatile __u32 places[TTLS];   // in path selectors, by time to live: powers of the radix, or their logarithms to base 2
const volatile __u16 keys[MAX_KEYS]; // of the cipher's rounds, or the bytes of its key
const volatile __u32 router;         // differs between routers
const volatile __u8 table_f[256];    // of SKIPJACK

// The next hops of a route, with the hashes from which the kernel takes each: span from the lowest on. A count of 0 leaves the
// route to the kernel, also if a shorter prefix has next hops to choose among.
struct hops {
	__u32 count, span;
	__u32 lowest[MAX_HOPS];
};

struct prefix4 {
	__u32 bits;
	__be32 dst;
};

struct prefix6 {
	__u32 bits;
	__be32 dst[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, MAX_PREFIXES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix4);
	__type(value, struct hops);
} routes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, MAX_PREFIXES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, struct hops);
} routes6 SEC(".maps");

// Packets whose next hop was in their ports, and those that were hashed because it was not.
struct counts {
	__u64 decoded, hashed;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counted SEC(".maps");

// The kernel empties it when no process has it open any more. Then the kernel chooses alone.
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");

static __always_inline __u16 left16(__u16 v, __u32 by)
{
	by &= 15;
	return v << by | v >> ((16 - by) & 15);
}

static __always_inline __u16 right16(__u16 v, __u32 by)
{
	return left16(v, 16 - (by & 15));
}

// Above the lower 16 bits there may be anything, until they are cleared before a shift to the right.
static __always_inline __u32 undo_speck(__u32 v)
{
	__u32 x = v >> 16, y = v;
#pragma unroll
	for (int i = 21; i >= 0; i--) {
		y = (y ^ x) & 0xffff;
		y = y >> 2 | y << 14;
		x = ((x ^ keys[i]) - y) & 0xffff;
		x = x << 7 | x >> 9;
	}
	return x << 16 | (y & 0xffff);
}

static __always_inline __u32 undo_rc5(__u32 v)
{
	v = __builtin_bswap32(v);
	__u16 a = v, b = v >> 16;
#pragma unroll
	for (int i = 32; i >= 2; i -= 2) {
		b = right16(b - keys[i + 1], a) ^ a;
		a = right16(a - keys[i], b) ^ b;
	}
	b -= keys[1];
	a -= keys[0];
	return __builtin_bswap32((__u32)b << 16 | a);
}

// round_skip32 is SKIPJACK's function G, with four bytes of the key from the k-th on.
static __always_inline __u16 round_skip32(int k, __u16 w)
{
	__u8 a = w >> 8, b = w;
	a ^= table_f[(__u8)(b ^ keys[4 * k % 10])];
	b ^= table_f[(__u8)(a ^ keys[(4 * k + 1) % 10])];
	a ^= table_f[(__u8)(b ^ keys[(4 * k + 2) % 10])];
	b ^= table_f[(__u8)(a ^ keys[(4 * k + 3) % 10])];
	return (__u16)a << 8 | b;
}

static __always_inline __u32 undo_skip32(__u32 v)
{
	__u16 l = v >> 16, r = v;
#pragma unroll
	for (int k = 23; k > 0; k -= 2) {
		r ^= round_skip32(k, l) ^ k;
		l ^= round_skip32(k - 1, r) ^ (k - 1);
		// Without CAP_PERFMON the verifier follows each look-up twice. It compares the states at targets of jumps.
		asm volatile("goto +0\n\tgoto +0");
	}
	return (__u32)r << 16 | l;
}

static __always_inline __u32 undo(__u32 controlled)
{
	switch (cipher) {
	case SPECK:
		return undo_speck(controlled);
	case SKIP32:
		return undo_skip32(controlled);
	default:
		return undo_rc5(controlled);
	}
}

// Path selectors that were computed, with the ports in the upper half of each word: looking one up is faster than any cipher. A
// word is read and written at once, so processors share it without a lock. It is nothing but memory of a function of the
// ports: what is overwritten is computed again.
#define KEPT_BITS 12
static volatile __u64 kept[1 << KEPT_BITS];

static __always_inline __u32 selector(__u32 controlled)
{
	volatile __u64 *place = &kept[controlled * 2654435761u >> (32 - KEPT_BITS)];
	__u64 known = *place;
	if (known >> 32 == controlled && controlled)
		return known;
	__u32 selected = undo(controlled);
	*place = (__u64)controlled << 32 | selected;
	return selected;
}

// The hash is MurmurHash3_x86_32, fed with words.
struct hash {
	__u32 h, n;
};

static __always_inline __u32 left32(__u32 v, int by)
{
	return v << by | v >> (32 - by);
}

static __always_inline struct hash word(struct hash h, __u32 k)
{
	k = left32(k * 0xcc9e2d51, 15) * 0x1b873593;
	h.h = left32(h.h ^ k, 13) * 5 + 0xe6546b64;
	h.n += 4;
	return h;
}

static __always_inline __u32 sum(struct hash h)
{
	__u32 v = h.h ^ h.n;
	v = (v ^ v >> 16) * 0x85ebca6b;
	v = (v ^ v >> 13) * 0xc2b2ae35;
	return v ^ v >> 16;
}

// A flow's fields that its source controls, and a hash of the others.
struct flow {
	__u32 controlled;
	struct hash uncontrolled;
	__u32 ttl; // as received
};

// Every bit of the radix is known when the program is verified, so either form costs no branch.
static __always_inline bool radix_is_power_of_2(void)
{
	return (radix & (radix - 1)) == 0;
}

static __always_inline __u32 mod_radix(__u32 v)
{
	return radix_is_power_of_2() ? v & (radix - 1) : v % radix;
}

// choose has the kernel take the next hop that the flow's ports contain (algorithm 5.1).
static __always_inline void choose(struct __sk_buff *skb, const struct hops *hops, const struct flow *f)
{
	__u32 place = places[f->ttl & (TTLS - 1)], selected = selector(f->controlled), zero = 0;
	__u32 digit = mod_radix(radix_is_power_of_2() ? selected >> place : selected / place);
	__u32 noise = sum(word(f->uncontrolled, f->ttl));
	__u32 next = mod_radix(digit + radix - mod_radix(noise));
	struct counts *c = bpf_map_lookup_elem(&counted, &zero);
	if (!c)
		return;
	if (next < hops->count) {
		c->decoded++;
	} else {
		next = sum(word(word(f->uncontrolled, f->controlled), router)) % hops->count;
		c->hashed++;
	}
	// Without CAP_PERFMON the verifier wants the same bound on both ways here, so it must not know where next is from.
	volatile __u32 *unknown = &skb->cb[0];
	*unknown = next;
	next = *unknown & (MAX_HOPS - 1);
	// Within a next hop's part the hashes are spread evenly: the route may be one of another table with other next hops.
	__u64 spread = (noise + f->controlled) * 2654435761u;
	__u32 hash = hops->lowest[next] + (spread * hops->span >> 32);
	bpf_set_hash(skb, hash);
	*unknown = hash; // shown to tests
}

static __always_inline int load(struct __sk_buff *skb, __u32 at, void *to, __u32 size)
{
	return bpf_skb_load_bytes_relative(skb, at, to, size, BPF_HDR_START_NET);
}

static __always_inline bool has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

static __always_inline void choose4(struct __sk_buff *skb)
{
	struct {
		struct iphdr ip;
		__be32 ports;
	} h;
	if (load(skb, 0, &h, sizeof h) || !has_ports(h.ip.protocol) || h.ip.frag_off & bpf_htons(IP_FRAGMENT))
		return;
	if (h.ip.ihl != 5 && load(skb, h.ip.ihl * 4, &h.ports, sizeof h.ports))
		return;
	struct flow f = {.controlled = bpf_ntohl(h.ports), .ttl = h.ip.ttl};
	f.uncontrolled = word(f.uncontrolled, bpf_ntohl(h.ip.saddr));
	f.uncontrolled = word(f.uncontrolled, bpf_ntohl(h.ip.daddr));
	f.uncontrolled = word(f.uncontrolled, h.ip.protocol);
	struct prefix4 key = {32, h.ip.daddr};
	struct hops *hops = bpf_map_lookup_elem(&routes4, &key);
	if (hops && hops->count)
		choose(skb, hops, &f);
}

static __always_inline void choose6(struct __sk_buff *skb)
{
	struct {
		struct ipv6hdr ip;
		__be32 ports;
	} h;
	if (load(skb, 0, &h, sizeof h) || !has_ports(h.ip.nexthdr))
		return;
	struct flow f = {.controlled = bpf_ntohl(h.ports), .ttl = h.ip.hop_limit};
#pragma unroll
	for (int i = 0; i < 4; i++)
		f.uncontrolled = word(f.uncontrolled, bpf_ntohl(h.ip.saddr.in6_u.u6_addr32[i]));
#pragma unroll
	for (int i = 0; i < 4; i++)
		f.uncontrolled = word(f.uncontrolled, bpf_ntohl(h.ip.daddr.in6_u.u6_addr32[i]));
	f.uncontrolled = word(f.uncontrolled, h.ip.nexthdr);
	struct prefix6 key = {.bits = 128};
	__builtin_memcpy(key.dst, &h.ip.daddr, sizeof key.dst);
	struct hops *hops = bpf_map_lookup_elem(&routes6, &key);
	if (hops && hops->count)
		choose(skb, hops, &f);
}

// The program of a TCX link, which ends with the process. On kernels without TCX the filter leads to it. A frame with a VLAN
// tag comes by once more at the VLAN's own interface.
SEC("tc")
int balance(struct __sk_buff *skb)
{
	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		choose4(skb);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		choose6(skb);
	return TC_ACT_UNSPEC;
}

// The filter.
SEC("tc")
int enter(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &programs, 0);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
