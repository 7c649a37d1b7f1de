//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The waypoint's end of in-band detours: marks the SYNs that ask for a detour
// and are authentic, before netfilter sees them. All others pass as they came.
#include "authenticator.h"
#include "syn.h"

#define MAX_SLOTS 32

// The bits of packets' marks that are ours; the others stay as they are.
volatile const __u32 mark_mask = 0xffffffff;

struct slot {
	struct key key;
	__u64 expires; // CLOCK_BOOTTIME, in nanoseconds
	__u32 mark;
	__u32 port_mask; // of the client's port: 0xffff, or 0 where it may be rewritten
};

struct slots {
	__u64 count;
	struct slot slot[MAX_SLOTS];
};

// Userspace replaces whole values.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __be32);
	__type(value, struct slots);
} clients SEC(".maps");

// A SYN by what its authenticator covers. A retransmission has another TSval.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct message);
	__type(value, __u8);
} seen SEC(".maps");

struct counters {
	__u64 accepted, malformed, unknown_address, bad_authenticator, replayed;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counts SEC(".maps");

// A search for the slot under which a SYN is authentic. Words of eight bytes,
// see syn.h.
struct search {
	struct slots *slots;
	struct message message;
	__u64 first; // word of the message, without the client's port
	__u64 port;  // the client's
	__u64 now;
	__u64 sent;
	__u64 mark;
	__u64 found;
};

static long try_slot(__u32 i, struct search *search)
{
	const struct slots *slots = search->slots;
	const struct slot *slot = &slots->slot[i & (MAX_SLOTS - 1)];

	if (i >= slots->count)
		return STOP;
	if (slot->expires <= search->now)
		return GO_ON;
	search->message.word[0] = search->first | (search->port & slot->port_mask) << 32;
	if (authenticator(&slot->key, &search->message) != search->sent)
		return GO_ON;
	search->mark = slot->mark;
	search->found = 1;
	return STOP;
}

static __always_inline int receive(struct __sk_buff *skb, const __u32 l2)
{
	struct syn *s = read_syn(skb, l2);
	const __u32 zero = 0;
	const __u8 yes = 1;
	struct search search = {};
	struct counters *count;

	if (!s)
		return TC_ACT_UNSPEC;
	count = bpf_map_lookup_elem(&counts, &zero);
	if (!count)
		return TC_ACT_UNSPEC;
	switch (read_options(skb, s)) {
	case NO_DETOUR:
		return TC_ACT_UNSPEC;
	case MALFORMED:
		count->malformed++;
		return TC_ACT_UNSPEC;
	case DETOUR:
		break;
	}
	search.slots = bpf_map_lookup_elem(&clients, &s->ip.saddr);
	if (!search.slots) {
		count->unknown_address++;
		return TC_ACT_UNSPEC;
	}
	if (!s->timestamps) {
		count->bad_authenticator++;
		return TC_ACT_UNSPEC;
	}
	search.sent = bpf_ntohl(s->time.tsecr);
	if (!search.sent && skb->mark & mark_mask)
		return TC_ACT_UNSPEC; // seen already, on a port of this bridge
	search.message = message(s->ip.saddr, 0, s->server, s->tcp.dest, s->tcp.seq, s->time.tsval);
	search.first = search.message.word[0];
	search.port = s->tcp.source;
	search.now = bpf_ktime_get_boot_ns();
	bpf_loop(MAX_SLOTS, try_slot, &search, 0);
	if (!search.found) {
		count->bad_authenticator++;
		return TC_ACT_UNSPEC;
	}
	// What cannot be remembered could come again: it does not pass.
	if (bpf_map_update_elem(&seen, &search.message, &yes, BPF_NOEXIST)) {
		count->replayed++;
		return TC_ACT_UNSPEC;
	}
	if (write_tsecr(skb, s, 0)) {
		skb->mark = (skb->mark & ~mark_mask) | search.mark;
		count->accepted++;
	}
	return TC_ACT_UNSPEC;
}

SEC("tc")
int receive_ethernet(struct __sk_buff *skb)
{
	return receive(skb, ETHERNET);
}

SEC("tc")
int receive_headerless(struct __sk_buff *skb)
{
	return receive(skb, HEADERLESS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
