//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Sends and obeys TCP options by which two hosts ask each other for settings. Both say in the handshake what they ask
// and what they grant; a third host that removes that ends it there. doc.go describes the exchange.
//
// A new option is a header with find, write and apply, and a line in each of the lists below.
#include "framework.h"
#include "user_timeout.h"
#include "congestion.h"
#include "initial_window.h"
#include "delayed_ack.h"
#include "rate.h"
#include "rest.h"

#define ENOENT 2
#define TCP_SAVE_SYN 27
#define SAVE_WITHOUT_LINK 1
#define FLAG_SYN 0x02
#define FLAG_ACK 0x10
#define MPTCP 30 // RFC 8684
#define SUBTYPE_JOIN 1

// The announcement in the SYN and its answer in the SYN+ACK: experiment id 0xdc10, a version, and the masks of what the
// sender asks and grants. In the SYN it is filled up, so that it finds no room beside MP_JOIN: the rest of that belongs
// to in-band detours. In the SYN+ACK there is no room for a version beside MP_CAPABLE.
#define ANNOUNCE_ID 0xdc10
#define ANNOUNCE_LENGTH 10
#define ANSWER_LENGTH 6
#define VERSION 1

struct masks {
	__u32 asks, accepts;
	bool valid;
};

static __always_inline struct masks announced(struct bpf_sock_ops *ctx)
{
	__u64 o[WORDS] = {};
	struct masks m = {};

	if (find(ctx, o, ANNOUNCE_ID, true) != ANNOUNCE_LENGTH || (__u8)(o[0] >> 32) != VERSION)
		return m;
	m.asks = (__u8)(o[0] >> 40);
	m.accepts = (__u8)(o[0] >> 48);
	m.valid = true;
	return m;
}

// useful reports whether the masks of both sides have something in common.
static __always_inline bool useful(struct masks *m) { return m->valid && ((m->asks & accepts) || (m->accepts & asks)); }

// next returns the option that is sent next, of those that remain.
static __always_inline __u32 next(__u32 todo)
{
	if (todo & INITIAL_WINDOW)
		return INITIAL_WINDOW;
	if (todo & CONGESTION)
		return CONGESTION;
	if (todo & DELAYED_ACK)
		return DELAYED_ACK;
	if (todo & RATE)
		return RATE;
	return todo & USER_TIMEOUT;
}

static __always_inline __u64 bytes_of(__u32 option)
{
	switch (option) {
	case USER_TIMEOUT:
		return user_timeout_bytes();
	case CONGESTION:
		return congestion_bytes();
	case INITIAL_WINDOW:
		return initial_window_bytes();
	case RATE:
		return rate_bytes();
	}
	return delayed_ack_bytes();
}

static __always_inline __u32 asked_of(__u32 option)
{
	switch (option) {
	case USER_TIMEOUT:
		return user_timeout_asked;
	case CONGESTION:
		return congestion_asked;
	case INITIAL_WINDOW:
		return initial_window_asked;
	case RATE:
		return rate_asked;
	}
	return delayed_ack_asked;
}

// receive obeys the awaited options of the current packet. The first that is there counts; each is obeyed once.
static __always_inline void receive(struct bpf_sock_ops *ctx, struct connection *c)
{
	long length;

#define RECEIVE(option, found, expected, apply)                                  \
	if (c->await & (option)) {                                               \
		__u64 o[WORDS] = {};                                             \
		length = (found);                                                \
		if (length >= 0) {                                               \
			struct decision d = {option};                            \
			if (length == (expected))                                \
				apply(ctx, o, &d);                               \
			else                                                     \
				d.verdict = MALFORMED;                           \
			report(ctx, &d);                                         \
			c->await &= ~(option);                                   \
		}                                                                \
	}
	RECEIVE(USER_TIMEOUT, user_timeout_find(ctx, o), USER_TIMEOUT_LENGTH, user_timeout_apply)
	RECEIVE(CONGESTION, find(ctx, o, CONGESTION_ID, false), CONGESTION_LENGTH, congestion_apply)
	RECEIVE(INITIAL_WINDOW, find(ctx, o, INITIAL_WINDOW_ID, false), INITIAL_WINDOW_LENGTH, initial_window_apply)
	RECEIVE(DELAYED_ACK, find(ctx, o, DELAYED_ACK_ID, false), DELAYED_ACK_LENGTH, delayed_ack_apply)
	RECEIVE(RATE, find(ctx, o, RATE_ID, false), RATE_LENGTH, rate_apply)
#undef RECEIVE
}

// subtype returns the subtype of the MPTCP option in the current packet, or in the SYN; negative: there is none.
static __always_inline int subtype(struct bpf_sock_ops *ctx, bool syn)
{
	__u64 o[WORDS] = {MPTCP};

	if (bpf_load_hdr_opt(ctx, o, LONGEST, syn ? BPF_LOAD_HDR_OPT_TCP_SYN : 0) <= 0)
		return -1;
	return o[0] >> 20 & 0xf;
}

static __always_inline struct connection *connection_of(struct bpf_sock_ops *ctx, __u32 flags)
{
	struct bpf_sock *sk = ctx->sk; // read once: two reads are two pointers to the verifier

	return sk ? bpf_sk_storage_get(&connections, sk, 0, flags) : 0;
}

static __always_inline void forget(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (sk)
		bpf_sk_storage_delete(&connections, sk);
}

// Calls for each packet cost time. They end as soon as nothing is left to do.
static __always_inline void settle(struct bpf_sock_ops *ctx, struct connection *c)
{
	calls(ctx, c, (c->todo ? WRITE_CALLS : 0) | (c->await ? PARSE_CALLS : 0));
	if (!c->todo && !c->await)
		forget(ctx);
}

// leave ends what this program began with a socket.
static __always_inline void leave(struct bpf_sock_ops *ctx)
{
	struct connection *c = connection_of(ctx, 0);

	if (!c)
		return;
	c->todo = c->await = 0;
	settle(ctx, c);
}

// begin has a connection, or a joined subflow, send and await options. What calls to keep are others'.
static __always_inline struct connection *begin(struct bpf_sock_ops *ctx, __u32 todo, __u32 await, __u32 keep)
{
	struct connection *c = connection_of(ctx, todo || await ? BPF_SK_STORAGE_GET_F_CREATE : 0);

	if (!c)
		return 0;
	c->todo = todo;
	c->await = await;
	c->others |= keep;
	return c;
}

// join begins with a joined subflow, of which only the rate is asked.
static __always_inline void join(struct bpf_sock_ops *ctx, __u32 todo, __u32 await, __u32 keep)
{
	struct connection *c = begin(ctx, todo, await, keep);

	if (c)
		settle(ctx, c);
}

static __always_inline void established(struct bpf_sock_ops *ctx, struct masks m, bool passive, __u32 keep)
{
	struct connection *c;
	__u32 todo = 0, await = 0;

	if (m.valid) {
		todo = asks & m.accepts;
		await = accepts & m.asks;
	}
	// RFC 5482's option is not negotiated.
	todo |= asks & USER_TIMEOUT;
	await |= accepts & USER_TIMEOUT;
	if (passive)
		todo &= ~INITIAL_WINDOW; // its place was the SYN+ACK
	c = begin(ctx, todo, await, keep);
	if (!c)
		return;
	receive(ctx, c); // from the SYN+ACK or the third ACK
	if (!passive)
		c->await &= ~INITIAL_WINDOW;
	settle(ctx, c);
}

// conclude learns from the handshake of a connection whose first SYN announced. If the second SYN was lost, too, the
// announcement was not the reason.
static __always_inline void conclude(struct bpf_sock_ops *ctx, bool answered)
{
	struct connection *c = connection_of(ctx, 0);
	__u32 repeated = ctx->total_retrans;

	if (!c || !c->announced)
		return;
	if (answered || !repeated)
		heard(ctx);
	else if (repeated == 1)
		unheard(ctx);
}

static __always_inline void active_established(struct bpf_sock_ops *ctx)
{
	__u64 o[WORDS] = {};
	struct masks m = {};
	int kind = subtype(ctx, false);
	__u32 keep = subflows_are_others && kind >= 0 ? WRITE_CALLS : 0;
	struct address peer = remote(ctx);
	bool answered;

	if (!among(&peers, ctx)) {
		leave(ctx);
		return;
	}
	answered = find(ctx, o, ANNOUNCE_ID, false) == ANSWER_LENGTH;
	conclude(ctx, answered);
	if (kind == SUBTYPE_JOIN) {
		join(ctx, asks & RATE && bpf_map_lookup_elem(&granters, &peer) ? RATE : 0, 0, keep);
		return;
	}
	if (answered) {
		m.asks = (__u8)(o[0] >> 32);
		m.accepts = (__u8)(o[0] >> 40);
		m.valid = true;
	}
	if (asks & m.accepts & RATE)
		bpf_map_update_elem(&granters, &peer, &(__u8){1}, BPF_ANY);
	else if (asks & RATE)
		bpf_map_delete_elem(&granters, &peer);
	established(ctx, m, false, keep);
}

// inherit takes over what an earlier program of ours has left on the listener of a connection.
static __always_inline void inherit(struct bpf_sock_ops *ctx)
{
	struct connection *c;

	if (!(ctx->bpf_sock_ops_cb_flags & MARK) || connection_of(ctx, 0))
		return;
	c = connection_of(ctx, BPF_SK_STORAGE_GET_F_CREATE);
	if (c)
		c->mine = WRITE_CALLS | MARK;
}

static __always_inline void passive_established(struct bpf_sock_ops *ctx)
{
	struct masks m = {};

	inherit(ctx);
	if (!among(&peers, ctx)) {
		leave(ctx);
		return;
	}
	if (subtype(ctx, true) == SUBTYPE_JOIN) {
		join(ctx, 0, accepts & RATE, 0);
		return;
	}
	m = announced(ctx);
	if (!useful(&m))
		m.valid = false;
	if (ctx->total_retrans) // the client may have got the SYN+ACK without the answer
		m.accepts = 0;
	established(ctx, m, true, 0);
}

// wants_window reports whether the SYN+ACK asks for an initial window, too.
static __always_inline bool wants_window(struct masks *m) { return asks & m->accepts & INITIAL_WINDOW; }

// announces returns the connection whose SYN is about to leave, or null if that SYN must not announce: it is sent again, or
// it goes to a host that gets no announcement, and the call is for another program's sake.
static __always_inline struct connection *announces(struct bpf_sock_ops *ctx)
{
	return ctx->total_retrans ? 0 : connection_of(ctx, 0);
}

// answers reports whether the SYN+ACK that is about to leave answers an announcement, and copies that to m. A SYN+ACK that is
// sent again answers none, because a firewall may have dropped the first one for its answer. It is recognised by the SYN's
// link-layer header: the kernel has it only for the first SYN+ACK, because this program has SYNs saved without it.
static __always_inline bool answers(struct bpf_sock_ops *ctx, struct masks *m)
{
	__u64 o = 0;

	if (!among(&peers, ctx) || bpf_getsockopt(ctx, IPPROTO_TCP, TCP_BPF_SYN_MAC, &o, sizeof(o)) == -ENOENT)
		return false;
	*m = announced(ctx);
	return useful(m);
}

static __always_inline void reserve(struct bpf_sock_ops *ctx)
{
	__u8 flags = ctx->skb_tcp_flags;
	struct connection *c;
	struct masks m;

	if (flags & FLAG_SYN && !(flags & FLAG_ACK)) {
		if (announces(ctx))
			bpf_reserve_hdr_opt(ctx, ANNOUNCE_LENGTH, 0);
		return;
	}
	if (flags & FLAG_SYN) {
		if (!answers(ctx, &m))
			return;
		if (!wants_window(&m) || bpf_reserve_hdr_opt(ctx, ANSWER_LENGTH + INITIAL_WINDOW_LENGTH, 0))
			bpf_reserve_hdr_opt(ctx, ANSWER_LENGTH, 0);
		return;
	}
	c = connection_of(ctx, 0);
	if (!c || !c->todo)
		return;
	if (++c->writes > PATIENCE) { // only data leaves, or there is never room
		c->todo = 0;
		settle(ctx, c);
		return;
	}
	// Only in ACKs without data: a full segment would become longer than the path takes.
	if (ctx->args[0] == BPF_WRITE_HDR_TCP_CURRENT_MSS || ctx->skb_len)
		return;
	bpf_reserve_hdr_opt(ctx, next(c->todo) == USER_TIMEOUT ? USER_TIMEOUT_LENGTH : CONGESTION_LENGTH, 0);
}

static __always_inline void sent(struct bpf_sock_ops *ctx, __u32 option, __u32 asked)
{
	struct decision d = {.option = option, .verdict = SENT, .asked = asked};

	report(ctx, &d);
}

static __always_inline void write(struct bpf_sock_ops *ctx)
{
	__u8 flags = ctx->skb_tcp_flags;
	struct connection *c;
	struct masks m;
	__u64 bytes, rest[2];
	__u32 option;

	if (flags & FLAG_SYN && !(flags & FLAG_ACK)) {
		c = announces(ctx);
		if (!c)
			return;
		rest[0] = EXPERIMENT | ANNOUNCE_LENGTH << 8 | (__u64)bpf_htons(ANNOUNCE_ID) << 16 | (__u64)VERSION << 32 |
			  (__u64)asks << 40 | (__u64)accepts << 48;
		rest[1] = 0;
		if (!bpf_store_hdr_opt(ctx, rest, sizeof(rest), 0))
			c->announced = true;
		return;
	}
	if (flags & FLAG_SYN) {
		if (!answers(ctx, &m))
			return;
		bytes = experiment(ANNOUNCE_ID, asks << 8 | accepts);
		if (bpf_store_hdr_opt(ctx, &bytes, sizeof(bytes), 0) || !wants_window(&m))
			return;
		bytes = initial_window_bytes();
		if (bpf_store_hdr_opt(ctx, &bytes, sizeof(bytes), 0)) // there was no room
			return;
		sent(ctx, INITIAL_WINDOW, initial_window_asked);
		return;
	}
	c = connection_of(ctx, 0);
	if (!c || !c->todo)
		return;
	option = next(c->todo);
	bytes = bytes_of(option);
	if (bpf_store_hdr_opt(ctx, &bytes, sizeof(bytes), 0))
		return;
	if (!c->sent)
		sent(ctx, option, asked_of(option));
	// The third ACK is the only place of an initial window.
	if (++c->sent >= COPIES || option == INITIAL_WINDOW) {
		c->todo &= ~option;
		c->sent = 0;
		if (!c->todo)
			settle(ctx, c);
	}
}

static __always_inline void listening(struct bpf_sock_ops *ctx)
{
	struct connection *c = connection_of(ctx, BPF_SK_STORAGE_GET_F_CREATE);
	__u64 save = SAVE_WITHOUT_LINK;

	if (!c)
		return;
	bpf_setsockopt(ctx, IPPROTO_TCP, TCP_SAVE_SYN, &save, sizeof(int));
	calls(ctx, c, WRITE_CALLS | (ctx->bpf_sock_ops_cb_flags & WRITE_CALLS ? 0 : MARK));
}

static __always_inline void connecting(struct bpf_sock_ops *ctx)
{
	struct connection *c;

	if (!among(&peers, ctx) || rests_now(ctx)) {
		leave(ctx); // of an earlier attempt, maybe to another host
		return;
	}
	c = connection_of(ctx, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c)
		return;
	c->announced = false;
	calls(ctx, c, WRITE_CALLS);
}

SEC("sockops")
int options(struct bpf_sock_ops *ctx)
{
	struct connection *c;

	if (bpf_get_netns_cookie(ctx) != netns_cookie)
		return 1;
	called++;
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		listening(ctx);
		break;
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		connecting(ctx);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		active_established(ctx);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		passive_established(ctx);
		break;
	case BPF_SOCK_OPS_PARSE_HDR_OPT_CB:
		c = connection_of(ctx, 0);
		if (!c)
			break;
		receive(ctx, c);
		if (++c->parses >= PATIENCE)
			c->await = 0;
		if (!c->await)
			settle(ctx, c);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		reserve(ctx);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write(ctx);
		break;
	}
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
