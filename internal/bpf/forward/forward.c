//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Forwards the packets of known TCP connections as a router that translates
// addresses does, at tc's ingress. Whatever is not simple passes as it came, for
// the kernel to do the same with it or something better.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
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

#define AF_INET 2
#define AF_INET6 10

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04

#define IP_PLAIN 0x45	       // version 4, no options
#define IP_FRAGMENT 0x3fff     // "more fragments" and the offset
#define IP6_FLOWINFO 0x0fffffff // traffic class and flow label

#define MAX_WAYS 131072 // two a connection

// struct tcphdr of linux/tcp.h is bit fields; this is its wire form.
struct tcp {
	__be16 source, dest;
	__be32 seq, ack;
	__u8 offset, flags;
	__be16 window, checksum, urgent;
};

struct tuple4 {
	__be32 src, dst;
	__be16 sport, dport;
};

struct tuple6 {
	__be32 src[4], dst[4];
	__be16 sport, dport;
};

// What the two families have in common of a way, which is one direction of a
// connection: what changes about its packets, and what has been done.
struct change {
	__u32 addresses, ports; // how the sum over them changes: new less old
	__u32 ended;		// FIN, RST or SYN has been seen: the kernel has the rest
	__u32 unused;
	__u64 bytes; // of IP packets
};

struct way4 {
	struct tuple4 out;
	__u32 unused;
	struct change change;
};

struct way6 {
	struct tuple6 out;
	__u32 unused;
	struct change change;
};

// By what packets are like when they come in. Userspace adds and removes.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_WAYS);
	__type(key, struct tuple4);
	__type(value, struct way4);
} ways4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_WAYS);
	__type(key, struct tuple6);
	__type(value, struct way6);
} ways6 SEC(".maps");

// What is worked on. Not on the stack: without CAP_PERFMON each write there costs
// a barrier against speculation.
struct work {
	struct tuple4 key4;
	struct tuple6 key6;
	struct {
		struct iphdr ip;
		__be16 source, dest;
	} head4;
	struct {
		struct ipv6hdr ip;
		__be16 source, dest;
	} head6;
	struct bpf_fib_lookup route;
	struct bpf_redir_neigh next;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct work);
} works SEC(".maps");

// The programs for IPv4 and IPv6. The kernel empties it when no process has it
// open any more: filters that outlive ours then do nothing.
enum {
	IPV4,
	IPV6,
	FAMILIES,
};

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, FAMILIES);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");

// Whether the frame is a packet of this size and no more than the padding of a
// short frame: the kernel trims the others.
static __always_inline bool fits(const struct __sk_buff *skb, __u32 size)
{
	__u32 frame = ETH_HLEN + size;

	return skb->len == frame || (skb->len > frame && skb->len <= ETH_ZLEN);
}

// The size of the largest packet that leaves, of the MTU's concern.
static __always_inline __u32 largest(const struct __sk_buff *skb, __u32 headers, __u32 size)
{
	return skb->gso_size ? headers + skb->gso_size : size;
}

static __always_inline __u32 tcp_size(const struct tcp *tcp)
{
	return (tcp->offset >> 4) * 4;
}

// Finds the next hop, as the kernel does between prerouting and postrouting.
// What has no route, or no neighbour yet, or is too large, is the kernel's.
static __always_inline bool find_route(struct __sk_buff *skb, struct work *w, __u8 family, __be16 source, __be16 dest,
				       __u32 size)
{
	w->route.family = family;
	w->route.l4_protocol = IPPROTO_TCP;
	w->route.sport = source;
	w->route.dport = dest;
	w->route.tot_len = size;
	w->route.ifindex = skb->ifindex;
	return size <= 0xffff && bpf_fib_lookup(skb, &w->route, sizeof(w->route), 0) == BPF_FIB_LKUP_RET_SUCCESS;
}

// By the neighbour, not by the addresses that the look-up found: so the kernel
// learns that the neighbour is in use, and asks for it when it has not heard of it
// for long.
static __always_inline int send(struct work *w)
{
	w->next.nh_family = w->route.family;
	__builtin_memcpy(w->next.ipv6_nh, w->route.ipv6_dst, sizeof(w->next.ipv6_nh)); // of either family
	return bpf_redirect_neigh(w->route.ifindex, &w->next, sizeof(w->next), 0);
}

// A checksum that is yet to be made has only the addresses in it.
static __always_inline bool write_checksum(struct __sk_buff *skb, __u32 tcp_at, const struct change *c)
{
	__u32 at = tcp_at + offsetof(struct tcp, checksum);

	return !bpf_l4_csum_replace(skb, at, 0, c->addresses, BPF_F_PSEUDO_HDR) &&
	       !bpf_l4_csum_replace(skb, at, 0, c->ports, 0);
}

static __always_inline void end4(struct work *w, struct way4 *way)
{
	struct way4 *back;

	way->change.ended = 1;
	w->key4.src = way->out.dst;
	w->key4.dst = way->out.src;
	w->key4.sport = way->out.dport;
	w->key4.dport = way->out.sport;
	back = bpf_map_lookup_elem(&ways4, &w->key4);
	if (back)
		back->change.ended = 1;
}

static __always_inline void end6(struct work *w, struct way6 *way)
{
	struct way6 *back;

	way->change.ended = 1;
	__builtin_memcpy(w->key6.src, way->out.dst, sizeof(w->key6.src));
	__builtin_memcpy(w->key6.dst, way->out.src, sizeof(w->key6.dst));
	w->key6.sport = way->out.dport;
	w->key6.dport = way->out.sport;
	back = bpf_map_lookup_elem(&ways6, &w->key6);
	if (back)
		back->change.ended = 1;
}

SEC("tc")
int forward4(struct __sk_buff *skb)
{
	const __u32 tcp_at = ETH_HLEN + sizeof(struct iphdr), need = tcp_at + sizeof(struct tcp), zero = 0;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const struct iphdr *ip;
	const struct tcp *tcp;
	__u32 size, headers, sum;
	struct way4 *way;
	struct work *w;

	if (data + need > end) { // not in one piece
		if (bpf_skb_pull_data(skb, need))
			return TC_ACT_UNSPEC;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + need > end)
			return TC_ACT_UNSPEC;
	}
	ip = data + ETH_HLEN;
	tcp = data + tcp_at;
	if (*(const __u8 *)ip != IP_PLAIN || ip->protocol != IPPROTO_TCP || ip->frag_off & bpf_htons(IP_FRAGMENT))
		return TC_ACT_UNSPEC;
	w = bpf_map_lookup_elem(&works, &zero);
	if (!w)
		return TC_ACT_UNSPEC;
	w->key4.src = ip->saddr;
	w->key4.dst = ip->daddr;
	w->key4.sport = tcp->source;
	w->key4.dport = tcp->dest;
	way = bpf_map_lookup_elem(&ways4, &w->key4);
	if (!way || way->change.ended)
		return TC_ACT_UNSPEC;
	if (tcp->flags & (TCP_FIN | TCP_SYN | TCP_RST)) {
		end4(w, way);
		return TC_ACT_UNSPEC;
	}
	size = bpf_ntohs(ip->tot_len);
	headers = sizeof(*ip) + tcp_size(tcp);
	if (headers < sizeof(*ip) + sizeof(*tcp) || size < headers || !fits(skb, size) || ip->ttl <= 1)
		return TC_ACT_UNSPEC;

	// Routed as the kernel would: to the new destination, from the old source.
	w->route.flowinfo = 0;
	w->route.tos = ip->tos;
	w->route.ipv4_src = ip->saddr;
	w->route.ipv4_dst = way->out.dst;
	__builtin_memcpy(&w->head4, ip, sizeof(w->head4));
	if (!find_route(skb, w, AF_INET, w->head4.source, way->out.dport, largest(skb, headers, size)))
		return TC_ACT_UNSPEC;

	w->head4.ip.ttl--;
	sum = (__u16)~w->head4.ip.check + way->change.addresses + (__u16)~bpf_htons(0x0100);
	sum = (sum & 0xffff) + (sum >> 16);
	w->head4.ip.check = ~((sum & 0xffff) + (sum >> 16));
	w->head4.ip.saddr = way->out.src;
	w->head4.ip.daddr = way->out.dst;
	w->head4.source = way->out.sport;
	w->head4.dest = way->out.dport;
	if (bpf_skb_store_bytes(skb, ETH_HLEN, &w->head4, sizeof(w->head4), 0))
		return TC_ACT_UNSPEC;
	if (!write_checksum(skb, tcp_at, &way->change))
		return TC_ACT_SHOT;
	__sync_fetch_and_add(&way->change.bytes, size);
	return send(w);
}

SEC("tc")
int forward6(struct __sk_buff *skb)
{
	const __u32 tcp_at = ETH_HLEN + sizeof(struct ipv6hdr), need = tcp_at + sizeof(struct tcp), zero = 0;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const struct ipv6hdr *ip;
	const struct tcp *tcp;
	__u32 size, headers;
	struct way6 *way;
	struct work *w;

	if (data + need > end) {
		if (bpf_skb_pull_data(skb, need))
			return TC_ACT_UNSPEC;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + need > end)
			return TC_ACT_UNSPEC;
	}
	ip = data + ETH_HLEN;
	tcp = data + tcp_at;
	if (ip->version != 6 || ip->nexthdr != IPPROTO_TCP)
		return TC_ACT_UNSPEC;
	w = bpf_map_lookup_elem(&works, &zero);
	if (!w)
		return TC_ACT_UNSPEC;
	__builtin_memcpy(w->key6.src, &ip->saddr, sizeof(w->key6.src));
	__builtin_memcpy(w->key6.dst, &ip->daddr, sizeof(w->key6.dst));
	w->key6.sport = tcp->source;
	w->key6.dport = tcp->dest;
	way = bpf_map_lookup_elem(&ways6, &w->key6);
	if (!way || way->change.ended)
		return TC_ACT_UNSPEC;
	if (tcp->flags & (TCP_FIN | TCP_SYN | TCP_RST)) {
		end6(w, way);
		return TC_ACT_UNSPEC;
	}
	size = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	headers = sizeof(*ip) + tcp_size(tcp);
	if (headers < sizeof(*ip) + sizeof(*tcp) || size < headers || !fits(skb, size) || ip->hop_limit <= 1)
		return TC_ACT_UNSPEC;

	w->route.flowinfo = *(const __be32 *)ip & bpf_htonl(IP6_FLOWINFO);
	__builtin_memcpy(w->route.ipv6_src, &ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(w->route.ipv6_dst, way->out.dst, sizeof(way->out.dst));
	__builtin_memcpy(&w->head6, ip, sizeof(w->head6));
	if (!find_route(skb, w, AF_INET6, w->head6.source, way->out.dport, largest(skb, headers, size)))
		return TC_ACT_UNSPEC;

	w->head6.ip.hop_limit--;
	__builtin_memcpy(&w->head6.ip.saddr, way->out.src, sizeof(way->out.src));
	__builtin_memcpy(&w->head6.ip.daddr, way->out.dst, sizeof(way->out.dst));
	w->head6.source = way->out.sport;
	w->head6.dest = way->out.dport;
	if (bpf_skb_store_bytes(skb, ETH_HLEN, &w->head6, sizeof(w->head6), 0))
		return TC_ACT_UNSPEC;
	if (!write_checksum(skb, tcp_at, &way->change))
		return TC_ACT_SHOT;
	// A card's sum over the packet: IPv6 has no checksum of its own that makes up
	// for what changed in the header, which write_checksum supposes.
	bpf_csum_update(skb, way->change.addresses + (__u16)~bpf_htons(0x0001));
	__sync_fetch_and_add(&way->change.bytes, size);
	return send(w);
}

// The filter. What it leads to goes with the process; the maps stay with it, so
// that the next process can read what was counted.
SEC("tc")
int forward(struct __sk_buff *skb)
{
	if (skb->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		bpf_tail_call_static(skb, &programs, IPV4);
		asm volatile("" ::"r"(&ways4));
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		bpf_tail_call_static(skb, &programs, IPV6);
		asm volatile("" ::"r"(&ways6));
	}
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
