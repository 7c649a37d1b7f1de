// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the options share: the settings, the state of a connection, the report of what was decided.
#pragma once
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET6 10
#define IPPROTO_TCP 6
#define EXPERIMENT 254 // RFC 6994
#define NAME 16
#define LONGEST 40 // bytes of options
#define WORDS (LONGEST / 8)

// Bits of the options, in masks and in reports.
#define USER_TIMEOUT 1
#define CONGESTION 2
#define INITIAL_WINDOW 4
#define DELAYED_ACK 8
#define RATE 16

// What became of a request of the peer, and what this host sent.
enum verdict {
	GRANTED = 1,
	CAPPED,	       // granted within this host's bounds
	MALFORMED,     // of a wrong length
	OUT_OF_BOUNDS, // a value without a meaning
	UNKNOWN,       // a congestion control that is not offered
	UNTRUSTED,     // from a network that is not trusted
	LATE,	       // after data was sent, or in the wrong packet
	REFUSED,       // by the kernel
	SENT,	       // asked of the peer
};

// Set before loading. The cgroup may hold processes of many namespaces.
volatile const __u64 netns_cookie;
// Masks: what this host asks of peers, and what it grants them.
volatile const __u32 asks, accepts;
// Whether other programs have themselves called for what subflows send that this host opened, so that these calls stay on.
volatile const bool subflows_are_others;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

// How often the program was called for this namespace. Some calls may be missing: two processors may count at once.
__u64 called;

// Networks: the peers that are asked and answered, and those of which an initial window is accepted.
struct network {
	__u32 bits;
	__u32 address[4]; // IPv4 addresses as ::ffff:0:0/96
};

#define NETWORK_WORDS 3 // that hold one

struct networks {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 256);
	__type(key, struct network);
	__type(value, __u8);
};

struct networks peers SEC(".maps");
struct networks trusted SEC(".maps");

// Words of eight bytes, as all on the stack: without CAP_PERFMON, Linux 6.1 refuses to have a part of a word written whose
// value it follows.
struct event {
	__u64 local[2], remote[2]; // IPv4 addresses as ::ffff:0:0/96
	__u64 ports;		   // local in the low half, remote in the high one
	__u64 kind;		   // option, verdict
	__u64 values;		   // asked, granted
	__u64 error;
};

// What was decided about an option, or sent.
struct decision {
	__u64 option, verdict;
	__u64 asked, granted;
	__s64 error;
};

// A connection whose options are not done, or a listener.
struct connection {
	__u32 todo;   // to be sent
	__u32 await;  // may still come
	__u32 sent;   // packets with the option that is sent now
	__u32 writes; // calls for packets that leave
	__u32 parses; // calls for packets that came
	__u32 mine;   // calls that this program has turned on
	__u32 others; // calls that other programs need
	__u32 announced; // whether the SYN had an announcement
};

// Accepted connections begin with a copy of their listener's.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct connection);
} connections SEC(".maps");

// The hosts that grant a rate. Joined subflows, whose handshake has no room to ask, rely on what the first one learned.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64[2]);
	__type(value, __u8);
} granters SEC(".maps");

// Each option is sent in as many packets, because an ACK may be lost.
#define COPIES 2
// A connection whose options are not done after as many packets is left alone.
#define PATIENCE 64

#define WRITE_CALLS BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG
#define PARSE_CALLS BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG
// Calls for retransmission timeouts, of which a listener has none. That they are on shows a later program of ours that the calls
// for what leaves are of one of ours, which has ended, and of no other program.
#define MARK BPF_SOCK_OPS_RTO_CB_FLAG
#define ALL_CALLS (WRITE_CALLS | PARSE_CALLS | MARK)

// Two words at a time, which the verifier takes one by one only.
static __always_inline __u64 two(volatile __u32 *words)
{
	__u32 first = words[0], second = words[1];

	return first | (__u64)second << 32;
}

static __always_inline __u64 mapped(__u32 ip4) { return bpf_htonl(0xffff) | (__u64)ip4 << 32; }

static __always_inline void report(struct bpf_sock_ops *ctx, const struct decision *d)
{
	struct event e = {
		.ports = ctx->local_port | (__u64)bpf_ntohl(ctx->remote_port) << 32, .kind = d->option | d->verdict << 32,
		.values = d->asked | d->granted << 32, .error = d->error,
	};

	if (ctx->family == AF_INET6) {
		e.local[0] = two(&ctx->local_ip6[0]);
		e.local[1] = two(&ctx->local_ip6[2]);
		e.remote[0] = two(&ctx->remote_ip6[0]);
		e.remote[1] = two(&ctx->remote_ip6[2]);
	} else {
		e.local[1] = mapped(ctx->local_ip4);
		e.remote[1] = mapped(ctx->remote_ip4);
	}
	bpf_ringbuf_output(&events, &e, sizeof(e), 0);
}

struct address {
	__u64 words[2]; // IPv4 addresses as ::ffff:0:0/96
};

static __always_inline struct address remote(struct bpf_sock_ops *ctx)
{
	struct address a = {};

	if (ctx->family == AF_INET6) {
		a.words[0] = two(&ctx->remote_ip6[0]);
		a.words[1] = two(&ctx->remote_ip6[2]);
	} else {
		a.words[1] = mapped(ctx->remote_ip4);
	}
	return a;
}

// among reports whether the peer is in one of the networks. Not inlined: else the compiler combines the pointer with
// other conditions by arithmetic, which the verifier refuses.
static __noinline bool among(void *networks, struct bpf_sock_ops *ctx)
{
	struct address a = remote(ctx);
	__u64 n[NETWORK_WORDS];

	n[0] = 128 | a.words[0] << 32;
	n[1] = a.words[0] >> 32 | a.words[1] << 32;
	n[2] = a.words[1] >> 32;
	return bpf_map_lookup_elem(networks, n);
}

// calls sets for which packets the program is called. Calls that were on before this program turned them on stay on: other
// programs need them. Those that another program turns on while they are on for this one cannot be told apart, and end
// with this program's.
static __always_inline void calls(struct bpf_sock_ops *ctx, struct connection *c, __u32 mine)
{
	__u32 on = ctx->bpf_sock_ops_cb_flags;

	c->others = on & ALL_CALLS & (c->others | ~c->mine);
	c->mine = mine;
	bpf_sock_ops_cb_flags_set(ctx, (on & ~ALL_CALLS) | c->others | mine);
}

// find copies the peer's option with an experiment id from the current packet, or from the SYN. It returns its length, or
// an error if there is none. Of o, the first word has what is sought.
static __always_inline long find(struct bpf_sock_ops *ctx, __u64 *o, __u16 id, bool syn)
{
	o[0] = EXPERIMENT | 4 << 8 | (__u64)bpf_htons(id) << 16;
	return bpf_load_hdr_opt(ctx, o, LONGEST, syn ? BPF_LOAD_HDR_OPT_TCP_SYN : 0);
}

// value16 returns the 16 bits of an option of six bytes behind its experiment id.
static __always_inline __u16 value16(const __u64 *o) { return bpf_ntohs(o[0] >> 32); }

// experiment returns an option of six bytes as they are in memory. Options are built as numbers: from bytes on the stack that
// depend on conditions the compiler makes writes at computed places, which the verifier refuses.
static __always_inline __u64 experiment(__u16 id, __u16 value)
{
	return EXPERIMENT | 6 << 8 | (__u64)bpf_htons(id) << 16 | (__u64)bpf_htons(value) << 32;
}
