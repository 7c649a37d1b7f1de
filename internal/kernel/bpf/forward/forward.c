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
#define TCP_ACK 0x10

#define IP_PLAIN 0x45	       // version 4, no options
#define IP_FRAGMENT 0x3fff     // "more fragments" and the offset
#define IP_OFFSET 0x1fff
#define IP6_FLOWINFO 0x0fffffff // traffic class and flow label

#define IP6_FRAGMENT_OFFSET 0xfff8
#define IP6_HEADERS 8 // extension headers; no host sends as many
#define VLAN_ID 0x0fff

#define MAX_WAYS 131072 // two a connection

// How far the numbers of one packet may be from those of the packets before it, in
// bytes of the connection's data.
#define NEAR (1 << 20)	 // either way, without more ado
#define JUMP (1 << 24)	 // ahead, when packets were lost before they came here
#define FLIGHT (1 << 26) // sent and not acknowledged

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

// Stages of a connection.
enum {
	WATCHED,   // packets go up; their numbers are noted
	FORWARDED, // packets are forwarded
	ENDED,	   // a FIN or RST that counts has been seen: the kernel has the rest
};

// What the two families have in common of a way, which is one direction of a
// connection: what changes about its packets, and what has been done.
struct change {
	__u32 addresses, ports; // how the sum over them changes: new less old
	__u32 stage;
	__u32 begun;	 // how often the numbers below were begun anew; 0: they are not known
	__u32 next, ack; // sequence number after the data sent, and what was acknowledged
	__u64 bytes;	 // of IP packets that were forwarded
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
	struct tcp tcp;
	struct {
		__u8 next, length;
		__be16 fragment; // its offset and flags, in a header of fragments
	} extension;
	struct bpf_fib_lookup route;
	struct bpf_redir_neigh next;
	// In place of the other direction where that is not known: its numbers never begin. A null pointer that is checked twice
	// is refused by Linux 6.1 without CAP_PERFMON, which follows what a processor may speculate between the checks.
	struct change none;
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

// The other direction of a connection. It changes the key that is worked on.
static __always_inline struct change *back4(struct work *w, const struct way4 *way)
{
	struct way4 *back;

	w->key4.src = way->out.dst;
	w->key4.dst = way->out.src;
	w->key4.sport = way->out.dport;
	w->key4.dport = way->out.sport;
	back = bpf_map_lookup_elem(&ways4, &w->key4);
	return back ? &back->change : &w->none;
}

static __always_inline struct change *back6(struct work *w, const struct way6 *way)
{
	struct way6 *back;

	__builtin_memcpy(w->key6.src, way->out.dst, sizeof(w->key6.src));
	__builtin_memcpy(w->key6.dst, way->out.src, sizeof(w->key6.dst));
	w->key6.sport = way->out.dport;
	w->key6.dport = way->out.sport;
	back = bpf_map_lookup_elem(&ways6, &w->key6);
	return back ? &back->change : &w->none;
}

static __always_inline bool near(__u32 number, __u32 other)
{
	return number - other + NEAR <= 2 * NEAR;
}

static __always_inline bool after(__u32 number, __u32 other)
{
	return (__s32)(number - other) > 0;
}

// The numbers of a packet with an acknowledgement.
struct numbers {
	__u32 seq, len, ack;
};

static __always_inline void advance(struct change *c, struct numbers n)
{
	if (after(n.seq + n.len, c->next))
		c->next = n.seq + n.len;
	if (after(n.ack, c->ack))
		c->ack = n.ack;
}

// Most packets follow the one before, and the other direction need not be asked.
static __always_inline bool follow(struct change *c, struct numbers n)
{
	if (!c->begun || !near(n.seq, c->next) || !near(n.ack, c->ack))
		return false;
	advance(c, n);
	return true;
}

// A stranger who does not see the connection cannot know its numbers. His packets are
// not to move what is noted; those that were lost and those that were late may.
static __always_inline void relate(struct change *c, const struct change *back, struct numbers n)
{
	bool seq = near(n.seq, c->next) || n.seq - c->next <= JUMP;
	bool ack = near(n.ack, c->ack);

	if (back->begun) {
		seq = seq || near(n.seq, back->ack);
		ack = ack || (n.ack - c->ack <= FLIGHT && !after(n.ack, back->next));
	}
	if (c->begun && seq && ack) {
		advance(c, n);
		return;
	}
	if (c->stage != WATCHED)
		return;
	// Nothing is forwarded yet, so that netfilter drops what is a stranger's.
	// Userspace sees that the numbers are others, and waits until they stay.
	c->next = n.seq + n.len;
	c->ack = n.ack;
	c->begun++;
}

static __always_inline bool holds(__u32 seq, __u32 len, __u32 number)
{
	return number - seq <= len;
}

// Whether a FIN or RST is what the receiver waits for, as RFC 5961 has it: it follows
// what has been sent, or what the receiver has acknowledged.
static __always_inline bool ends(const struct change *c, const struct change *back, __u32 seq, __u32 len)
{
	if (!c->begun || !back->begun || c->next - back->ack + FLIGHT > 2 * FLIGHT)
		return false;
	return holds(seq, len, c->next) || holds(seq, len, back->ack);
}

// What is to be done with a packet.
enum verdict {
	FORWARD,
	GO_UP,
	PASS_BY, // forward it, but do not let conntrack see it, which would believe it
	DROP,
};

static __always_inline enum verdict judge(struct change *c, struct change *back, __u8 flags, __u32 seq, __u32 len)
{
	// After a SYN conntrack believes any RST that acknowledges it.
	if ((flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN)
		return DROP;
	if (c->stage == WATCHED) // conntrack knows the numbers itself
		return GO_UP;
	if (flags & (TCP_FIN | TCP_RST)) {
		if (!ends(c, back, seq, flags & TCP_RST ? 0 : len))
			return PASS_BY;
		c->stage = ENDED;
		back->stage = ENDED;
		return GO_UP;
	}
	return PASS_BY; // an answer to a SYN
}

// What comes of a packet that cannot be forwarded, of this verdict.
static __always_inline int not_forwarded(enum verdict v)
{
	return v == PASS_BY || v == DROP ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

// The packet whose TCP header is at tcp_at has IP options, extension headers or is the first
// fragment of one. It goes up, unless conntrack would believe what it must not.
static __always_inline int unusual(struct change *c, struct change *back, const struct tcp *tcp, __u32 size)
{
	__u32 header = tcp_size(tcp);

	if (!(tcp->flags & (TCP_FIN | TCP_SYN | TCP_RST)))
		return TC_ACT_UNSPEC;
	return not_forwarded(judge(c, back, tcp->flags, bpf_ntohl(tcp->seq), size > header ? size - header : 0));
}

// A fragment that ends within the TCP header is no network's doing, but of who hides a flag.
static __always_inline int unusual4(struct __sk_buff *skb, struct work *w, __u32 at, __u32 size)
{
	bool whole = !bpf_skb_load_bytes(skb, at, &w->tcp, sizeof(w->tcp));
	struct way4 *way;

	if (!whole && bpf_skb_load_bytes(skb, at, &w->tcp, offsetof(struct tcp, seq)))
		return TC_ACT_UNSPEC;
	w->key4.sport = w->tcp.source;
	w->key4.dport = w->tcp.dest;
	way = bpf_map_lookup_elem(&ways4, &w->key4);
	if (!way || way->change.stage == ENDED)
		return TC_ACT_UNSPEC;
	if (!whole)
		return TC_ACT_SHOT;
	return unusual(&way->change, back4(w, way), &w->tcp, size);
}

static __always_inline int unusual6(struct __sk_buff *skb, struct work *w, __u32 at, __u32 size)
{
	bool whole = !bpf_skb_load_bytes(skb, at, &w->tcp, sizeof(w->tcp));
	struct way6 *way;

	if (!whole && bpf_skb_load_bytes(skb, at, &w->tcp, offsetof(struct tcp, seq)))
		return TC_ACT_UNSPEC;
	w->key6.sport = w->tcp.source;
	w->key6.dport = w->tcp.dest;
	way = bpf_map_lookup_elem(&ways6, &w->key6);
	if (!way || way->change.stage == ENDED)
		return TC_ACT_UNSPEC;
	if (!whole)
		return TC_ACT_SHOT;
	return unusual(&way->change, back6(w, way), &w->tcp, size);
}

// Finds the TCP header behind extension headers, as conntrack does.
static __always_inline int extended6(struct __sk_buff *skb, struct work *w, __u8 next, __u32 size)
{
	const __u32 begin = ETH_HLEN + sizeof(struct ipv6hdr);
	__u32 at = begin;

#pragma unroll
	for (int i = 0; i < IP6_HEADERS; i++) {
		if (next == IPPROTO_TCP)
			break;
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_FRAGMENT && next != IPPROTO_AH)
			return TC_ACT_UNSPEC;
		if (bpf_skb_load_bytes(skb, at, &w->extension, sizeof(w->extension)))
			return TC_ACT_UNSPEC;
		if (next == IPPROTO_FRAGMENT) {
			if (w->extension.fragment & bpf_htons(IP6_FRAGMENT_OFFSET))
				return TC_ACT_UNSPEC;
			at += 8;
		} else if (next == IPPROTO_AH) {
			at += (w->extension.length + 2) * 4;
		} else {
			at += (w->extension.length + 1) * 8;
		}
		next = w->extension.next;
	}
	if (next != IPPROTO_TCP)
		return TC_ACT_SHOT;
	return unusual6(skb, w, at, size > at - begin ? size - (at - begin) : 0);
}

SEC("tc")
int forward4(struct __sk_buff *skb)
{
	const __u32 tcp_at = ETH_HLEN + sizeof(struct iphdr), need = tcp_at + sizeof(struct tcp), zero = 0;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	enum verdict verdict = FORWARD;
	const struct iphdr *ip;
	const struct tcp *tcp;
	__u32 size, headers, sum;
	struct way4 *way;
	struct work *w;
	struct numbers n;

	if (data + need > end) { // not in one piece, or a small fragment
		if (bpf_skb_pull_data(skb, skb->len < need ? skb->len : need))
			return TC_ACT_UNSPEC;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + tcp_at > end)
			return TC_ACT_UNSPEC;
	}
	ip = data + ETH_HLEN;
	if (ip->protocol != IPPROTO_TCP || ip->frag_off & bpf_htons(IP_OFFSET))
		return TC_ACT_UNSPEC;
	w = bpf_map_lookup_elem(&works, &zero);
	if (!w)
		return TC_ACT_UNSPEC;
	w->key4.src = ip->saddr;
	w->key4.dst = ip->daddr;
	size = bpf_ntohs(ip->tot_len);
	if (*(const __u8 *)ip != IP_PLAIN || ip->frag_off & bpf_htons(IP_FRAGMENT)) {
		headers = ip->ihl * 4;
		return unusual4(skb, w, ETH_HLEN + headers, size > headers ? size - headers : 0);
	}
	if (data + need > end)
		return TC_ACT_UNSPEC;
	tcp = data + tcp_at;
	w->key4.sport = tcp->source;
	w->key4.dport = tcp->dest;
	way = bpf_map_lookup_elem(&ways4, &w->key4);
	if (!way || way->change.stage == ENDED)
		return TC_ACT_UNSPEC;
	headers = sizeof(*ip) + tcp_size(tcp);
	if (headers < sizeof(*ip) + sizeof(*tcp) || size < headers)
		return TC_ACT_UNSPEC; // conntrack does not believe it either
	n = (struct numbers){bpf_ntohl(tcp->seq), size - headers, bpf_ntohl(tcp->ack)};
	if ((tcp->flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK)) == TCP_ACK) {
		if (!follow(&way->change, n))
			relate(&way->change, back4(w, way), n);
	} else if (tcp->flags & (TCP_FIN | TCP_SYN | TCP_RST)) {
		verdict = judge(&way->change, back4(w, way), tcp->flags, n.seq, n.len);
	}
	if (way->change.stage != FORWARDED || verdict == GO_UP || verdict == DROP)
		return not_forwarded(verdict);
	if (!fits(skb, size) || ip->ttl <= 1)
		return not_forwarded(verdict);

	// Routed as the kernel would: to the new destination, from the old source.
	w->route.flowinfo = 0;
	w->route.tos = ip->tos;
	w->route.ipv4_src = ip->saddr;
	w->route.ipv4_dst = way->out.dst;
	__builtin_memcpy(&w->head4, ip, sizeof(w->head4));
	if (!find_route(skb, w, AF_INET, w->head4.source, way->out.dport, largest(skb, headers, size)))
		return not_forwarded(verdict);

	w->head4.ip.ttl--;
	sum = (__u16)~w->head4.ip.check + way->change.addresses + (__u16)~bpf_htons(0x0100);
	sum = (sum & 0xffff) + (sum >> 16);
	w->head4.ip.check = ~((sum & 0xffff) + (sum >> 16));
	w->head4.ip.saddr = way->out.src;
	w->head4.ip.daddr = way->out.dst;
	w->head4.source = way->out.sport;
	w->head4.dest = way->out.dport;
	if (bpf_skb_store_bytes(skb, ETH_HLEN, &w->head4, sizeof(w->head4), 0))
		return not_forwarded(verdict);
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
	enum verdict verdict = FORWARD;
	const struct ipv6hdr *ip;
	const struct tcp *tcp;
	__u32 size, headers;
	struct way6 *way;
	struct work *w;
	struct numbers n;

	if (data + need > end) {
		if (bpf_skb_pull_data(skb, skb->len < need ? skb->len : need))
			return TC_ACT_UNSPEC;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + tcp_at > end)
			return TC_ACT_UNSPEC;
	}
	ip = data + ETH_HLEN;
	if (ip->version != 6)
		return TC_ACT_UNSPEC;
	w = bpf_map_lookup_elem(&works, &zero);
	if (!w)
		return TC_ACT_UNSPEC;
	__builtin_memcpy(w->key6.src, &ip->saddr, sizeof(w->key6.src));
	__builtin_memcpy(w->key6.dst, &ip->daddr, sizeof(w->key6.dst));
	if (ip->nexthdr != IPPROTO_TCP)
		return extended6(skb, w, ip->nexthdr, bpf_ntohs(ip->payload_len));
	if (data + need > end)
		return TC_ACT_UNSPEC;
	tcp = data + tcp_at;
	w->key6.sport = tcp->source;
	w->key6.dport = tcp->dest;
	way = bpf_map_lookup_elem(&ways6, &w->key6);
	if (!way || way->change.stage == ENDED)
		return TC_ACT_UNSPEC;
	size = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	headers = sizeof(*ip) + tcp_size(tcp);
	if (headers < sizeof(*ip) + sizeof(*tcp) || size < headers)
		return TC_ACT_UNSPEC;
	n = (struct numbers){bpf_ntohl(tcp->seq), size - headers, bpf_ntohl(tcp->ack)};
	if ((tcp->flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK)) == TCP_ACK) {
		if (!follow(&way->change, n))
			relate(&way->change, back6(w, way), n);
	} else if (tcp->flags & (TCP_FIN | TCP_SYN | TCP_RST)) {
		verdict = judge(&way->change, back6(w, way), tcp->flags, n.seq, n.len);
	}
	if (way->change.stage != FORWARDED || verdict == GO_UP || verdict == DROP)
		return not_forwarded(verdict);
	if (!fits(skb, size) || ip->hop_limit <= 1)
		return not_forwarded(verdict);

	w->route.flowinfo = *(const __be32 *)ip & bpf_htonl(IP6_FLOWINFO);
	__builtin_memcpy(w->route.ipv6_src, &ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(w->route.ipv6_dst, way->out.dst, sizeof(way->out.dst));
	__builtin_memcpy(&w->head6, ip, sizeof(w->head6));
	if (!find_route(skb, w, AF_INET6, w->head6.source, way->out.dport, largest(skb, headers, size)))
		return not_forwarded(verdict);

	w->head6.ip.hop_limit--;
	__builtin_memcpy(&w->head6.ip.saddr, way->out.src, sizeof(way->out.src));
	__builtin_memcpy(&w->head6.ip.daddr, way->out.dst, sizeof(way->out.dst));
	w->head6.source = way->out.sport;
	w->head6.dest = way->out.dport;
	if (bpf_skb_store_bytes(skb, ETH_HLEN, &w->head6, sizeof(w->head6), 0))
		return not_forwarded(verdict);
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
	if (skb->vlan_present) {
		// The tag is beside the packet and would leave with it. The frame comes by
		// once more, without its tag, at the VLAN's own interface.
		if (skb->vlan_tci & VLAN_ID)
			return TC_ACT_UNSPEC;
		// VLAN 0 is a priority and nothing else: the frame is this interface's.
		if (bpf_skb_vlan_pop(skb))
			return TC_ACT_SHOT;
	}
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
