// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What both tc programs do with a packet: see quickly that it does not concern
// them, find the option of in-band detours and the timestamps in a SYN, and
// change the TSecr.
//
// Without CAP_PERFMON the verifier allows variable offsets into map values
// only, not into packets or the stack: hence the copy in a map. Nor does it
// bear loops, as it follows them past their ends, where a processor might
// speculate: hence bpf_loop (5.17). Up to 6.1 it takes two values in the same
// eight bytes of the stack for a pointer that is tampered with: hence structures
// of __u64 wherever one is on the stack.
#pragma once
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// linux/pkt_cls.h needs headers that are not there for every architecture.
#define TC_ACT_UNSPEC (-1) // go on with the next filter

// Bytes before the IP header, by kind of interface.
#define ETHERNET 14
#define HEADERLESS 0

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_TIMESTAMPS 8
#define OPTION_EXPERIMENT 254 // RFC 6994
#define TIMESTAMPS_SIZE 10
#define DETOUR_SIZE 8
#define DETOUR_ID 0xdc01

// struct tcphdr of linux/tcp.h is bit fields; this is its wire form.
struct tcp {
	__be16 source, dest;
	__be32 seq, ack;
	__u8 offset, flags;
	__be16 window, checksum, urgent;
};

struct syn {
	struct iphdr ip;
	struct tcp tcp;
	__u32 tcp_at; // in the packet

	__u8 options[64]; // 40 at most, and room for a mask in place of bounds
	__u32 length;	  // of options
	__u32 at;	  // where the walk is, in options
	__u32 detours, timestamps; // how many
	__u32 server_at, tsval_at; // in options
	bool broken;

	__be32 server;
	struct {
		__be32 tsval, tsecr;
	} time;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct syn);
} scratch SEC(".maps");

static __always_inline bool opens(__u8 flags)
{
	return (flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

// Most packets end here, without a call.
static __always_inline bool may_be_syn(struct __sk_buff *skb, const __u32 l2)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const struct iphdr *ip = data + l2;
	const struct tcp *tcp = (const void *)(ip + 1);

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return false;
	if ((void *)(tcp + 1) > end)
		return true; // not in one piece
	return ip->protocol == IPPROTO_TCP && (ip->ihl != 5 || opens(tcp->flags));
}

// The first SYN of a connection, if that is what the packet is, whole and
// unfragmented, with its options still to be looked at.
static __always_inline struct syn *read_syn(struct __sk_buff *skb, const __u32 l2)
{
	const __u32 zero = 0;
	__u32 ip_size, tcp_size, length;
	struct syn *s;

	if (!may_be_syn(skb, l2))
		return NULL;
	s = bpf_map_lookup_elem(&scratch, &zero);
	if (!s)
		return NULL;
	if (bpf_skb_load_bytes(skb, l2, &s->ip, sizeof(s->ip)))
		return NULL;
	if (s->ip.version != 4 || s->ip.protocol != IPPROTO_TCP || s->ip.frag_off & bpf_htons(0x3fff))
		return NULL;
	ip_size = s->ip.ihl * 4;
	if (ip_size < sizeof(s->ip))
		return NULL;
	s->tcp_at = l2 + ip_size;
	if (bpf_skb_load_bytes(skb, s->tcp_at, &s->tcp, sizeof(s->tcp)) || !opens(s->tcp.flags))
		return NULL;
	tcp_size = (s->tcp.offset >> 4) * 4;
	if (bpf_ntohs(s->ip.tot_len) < ip_size + tcp_size)
		return NULL;
	// Not `== sizeof(s->tcp)`, of which Linux 6.1 does not learn a bound.
	if (tcp_size < sizeof(s->tcp) + 4)
		return NULL;
	length = tcp_size - sizeof(s->tcp);
	s->length = length;
	if (bpf_skb_load_bytes(skb, s->tcp_at + sizeof(s->tcp), s->options, length))
		return NULL;
	return s;
}

static __always_inline __u8 option_byte(const struct syn *s, __u32 at)
{
	return s->options[at & (sizeof(s->options) - 1)];
}

struct walk {
	struct syn *syn;
};

enum {
	GO_ON,
	STOP,
};

// One option.
static long next_option(__u32 step, struct walk *walk)
{
	struct syn *s = walk->syn;
	__u32 at = s->at, room, size;
	__u8 kind;

	if (at >= s->length)
		return STOP;
	kind = option_byte(s, at);
	if (kind == OPTION_END)
		return STOP;
	if (kind == OPTION_NOP) {
		s->at = at + 1;
		return GO_ON;
	}
	room = s->length - at;
	size = room < 2 ? 0 : option_byte(s, at + 1);
	if (kind == OPTION_EXPERIMENT && room >= 4 && size >= 4 && option_byte(s, at + 2) == DETOUR_ID >> 8 &&
	    option_byte(s, at + 3) == (DETOUR_ID & 0xff)) {
		s->detours++;
		s->server_at = at + 4;
		if (size != DETOUR_SIZE)
			s->broken = true;
	} else if (kind == OPTION_TIMESTAMPS && size == TIMESTAMPS_SIZE) {
		s->timestamps++;
		s->tsval_at = at + 2;
	}
	if (size < 2 || size > room) {
		s->broken = true;
		return STOP;
	}
	s->at = at + size;
	return GO_ON;
}

enum verdict {
	NO_DETOUR,
	MALFORMED,
	DETOUR,
};

// Whatever is not exactly one detour, and at most one pair of timestamps, in a
// list that ends as it should, is malformed. netfilter takes the first option
// of kind 254; here that is ours, or one of another experiment, which its rule
// does not match.
static __always_inline enum verdict read_options(struct __sk_buff *skb, struct syn *s)
{
	const __u32 options_at = s->tcp_at + sizeof(s->tcp);
	struct walk walk = {s};

	s->at = s->detours = s->timestamps = s->server_at = s->tsval_at = 0;
	s->broken = false;
	bpf_loop(sizeof(s->options), next_option, &walk, 0);
	if (!s->detours)
		return NO_DETOUR;
	if (s->detours > 1 || s->timestamps > 1 || s->broken)
		return MALFORMED;
	// Each variable offset doubles what the verifier of 6.1 goes through, so
	// the words are not taken from options.
	if (bpf_skb_load_bytes(skb, options_at + s->server_at, &s->server, sizeof(s->server)))
		return MALFORMED;
	if (s->timestamps && bpf_skb_load_bytes(skb, options_at + s->tsval_at, &s->time, sizeof(s->time)))
		return MALFORMED;
	return DETOUR;
}

// The checksum sums pairs of bytes; at an odd place a word's are shifted by one.
static __always_inline __be32 as_summed(__be32 word, __u32 at)
{
	if (at % 2 == 0)
		return word;
	return (word & 0xff00ff00) >> 8 | (word & 0x00ff00ff) << 8;
}

static __always_inline bool write_tsecr(struct __sk_buff *skb, struct syn *s, __be32 to)
{
	__u32 at = sizeof(s->tcp) + s->tsval_at + sizeof(s->time.tsval); // in the TCP header
	__be32 from = s->time.tsecr;

	s->time.tsecr = to;
	if (bpf_skb_store_bytes(skb, s->tcp_at + at, &s->time.tsecr, sizeof(to), 0))
		return false;
	return !bpf_l4_csum_replace(skb, s->tcp_at + offsetof(struct tcp, checksum), as_summed(from, at),
				    as_summed(to, at), sizeof(to));
}
