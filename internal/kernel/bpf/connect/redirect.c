//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Redirects connect() of TCP sockets to listeners of this host, in one cgroup
// and one network namespace. getpeername() returns the server's address, and
// the listener's process finds it by the address from which a connection
// comes.
//
// Up to 6.1 the verifier takes two values in the same eight bytes of the stack
// for a pointer that is tampered with, so whatever is there has words of __u64.
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define IPPROTO_TCP 6
#define LOOPBACK4 bpf_htonl(0x7f000001)
#define LOOPBACK6 bpf_htonl(1) // the last word
#define MAPPED bpf_htonl(0xffff) // the third word of an IPv4-mapped address
#define IPV4_TUPLE sizeof(((struct bpf_sock_tuple *)0)->ipv4)
#define IPV6_TUPLE sizeof(((struct bpf_sock_tuple *)0)->ipv6)
#define DEEPEST 32 // levels of cgroups that are looked at

// In network byte order; what is first stands in the low half of a word. IPv4
// addresses are IPv4-mapped IPv6.
struct endpoint {
	__u64 addr[2];
	__u64 port;
};

// The trie compares what follows the first half of bits.
struct network {
	__u64 bits; // with the 32 in its other half, which are 0
	__u64 addr[2];
};

// The server of each redirected socket; port 0: it is not redirected. Sockets
// that are missing are not redirected at all: those of other namespaces, of
// MPTCP and of the kernel, such as MPTCP's subflows, and those that are older
// than the program.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct endpoint);
} sockets SEC(".maps");

// The servers of connections that have not been taken yet, by the address from
// which they come.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct endpoint);
	__type(value, struct endpoint);
} sources SEC(".maps");

// Servers that are not treated as others are.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint);
	__type(value, __u8);
} servers SEC(".maps");

// Connections to these networks and ports, and of these cgroups and processes,
// are never redirected.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct network);
	__type(value, __u8);
} networks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64); // as in struct endpoint
	__type(value, __u8);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u8);
} cgroups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u8);
} processes SEC(".maps");

// Set before loading. The cgroup may hold processes of many namespaces.
volatile const __u64 netns_cookie;

// Changed while the programs work.
volatile __u64 until;	// monotonic time in nanoseconds; nothing is redirected later
volatile __u32 others;	// whether connections to servers are redirected that are not listed
volatile __u32 port4;	// listens at 127.0.0.1, in network byte order; 0: none
volatile __u32 port6;	// at ::1

static __always_inline __u64 word(__be32 first, __be32 second)
{
	return first | (__u64)second << 32;
}

static __always_inline bool is_mapped(const struct endpoint *e)
{
	return !e->addr[0] && (__u32)e->addr[1] == MAPPED;
}

// The kernel does not call this for sockets of its own.
SEC("cgroup/sock_create")
int note_socket(struct bpf_sock *sk)
{
	struct endpoint none = {};

	if ((sk->family == AF_INET || sk->family == AF_INET6) && sk->type == SOCK_STREAM &&
	    sk->protocol == IPPROTO_TCP && bpf_get_netns_cookie(sk) == netns_cookie)
		bpf_sk_storage_get(&sockets, sk, &none, BPF_SK_STORAGE_GET_F_CREATE);
	return 1;
}

// What the program has bound goes where it wants. A mark means that the program
// routes its packets itself, as VPNs do. (Read at once, or the compiler
// computes addresses in the socket, which the verifier forbids.)
static __always_inline bool is_free(volatile struct bpf_sock *sk)
{
	__u32 ip4 = sk->src_ip4;
	__u32 ip6 = sk->src_ip6[0] | sk->src_ip6[1] | sk->src_ip6[2] | sk->src_ip6[3];
	__u32 taken = sk->mark | sk->bound_dev_if | sk->src_port;

	return !(taken | (sk->family == AF_INET ? ip4 : ip6));
}

struct search {
	__u64 found;
};

static int look_up_cgroup(__u32 level, struct search *search)
{
	__u64 id = bpf_get_current_ancestor_cgroup_id(level);

	if (id && bpf_map_lookup_elem(&cgroups, &id))
		search->found = 1;
	return !id || search->found;
}

// The verifier of 6.1 follows loops past their ends, where a processor might
// speculate: hence bpf_loop.
static __always_inline bool is_spared(void)
{
	__u64 process = bpf_get_current_pid_tgid() >> 32;
	struct search search = {};

	if (bpf_map_lookup_elem(&processes, &process))
		return true;
	bpf_loop(DEEPEST, look_up_cgroup, &search, 0);
	return search.found;
}

static __always_inline bool is_wanted(struct endpoint *server)
{
	struct network host = {32 + 128, {server->addr[0], server->addr[1]}};
	bool listed = bpf_map_lookup_elem(&servers, server);

	return listed != !!others && !bpf_map_lookup_elem(&networks, &host) &&
	       !bpf_map_lookup_elem(&ports, &server->port);
}

// Nobody may listen any more: the process is just being killed, and the programs are still there.
static __always_inline bool is_listened(struct bpf_sock_addr *ctx, bool ipv4)
{
	// A struct bpf_sock_tuple: addresses and ports, each of the caller and of the listener.
	__u64 ipv4_at[2] = {word(0, LOOPBACK4), port4 << 16};
	__u64 ipv6_at[5] = {0, 0, 0, word(0, LOOPBACK6), port6 << 16};
	struct bpf_sock *listener;

	if (ipv4)
		listener = bpf_skc_lookup_tcp(ctx, (void *)ipv4_at, IPV4_TUPLE, BPF_F_CURRENT_NETNS, 0);
	else
		listener = bpf_skc_lookup_tcp(ctx, (void *)ipv6_at, IPV6_TUPLE, BPF_F_CURRENT_NETNS, 0);
	if (!listener)
		return false;
	bpf_sk_release(listener);
	return true;
}

static __always_inline bool redirects(struct bpf_sock_addr *ctx, struct endpoint *server, bool ipv4)
{
	struct endpoint *noted = bpf_sk_storage_get(&sockets, ctx->sk, 0, 0);

	if (!noted)
		return false;
	noted->port = 0; // of an earlier connect()
	if (bpf_ktime_get_ns() >= until || !(ipv4 ? port4 : port6) || !server->port)
		return false;
	if (!is_free(ctx->sk) || !is_wanted(server) || is_spared() || !is_listened(ctx, ipv4))
		return false;
	*noted = *server;
	return true;
}

SEC("cgroup/connect4")
int connect_ipv4(struct bpf_sock_addr *ctx)
{
	struct endpoint server = {{0, word(MAPPED, ctx->user_ip4)}, ctx->user_port};

	if (redirects(ctx, &server, true)) {
		ctx->user_ip4 = LOOPBACK4;
		ctx->user_port = port4;
	}
	return 1;
}

SEC("cgroup/connect6")
int connect_ipv6(struct bpf_sock_addr *ctx)
{
	struct endpoint server = {{word(ctx->user_ip6[0], ctx->user_ip6[1]), word(ctx->user_ip6[2], ctx->user_ip6[3])},
				  ctx->user_port};
	bool ipv4 = is_mapped(&server);

	if (!redirects(ctx, &server, ipv4))
		return 1;
	if (ipv4) {
		ctx->user_ip6[3] = LOOPBACK4;
		ctx->user_port = port4;
	} else {
		ctx->user_ip6[0] = 0;
		ctx->user_ip6[1] = 0;
		ctx->user_ip6[2] = 0;
		ctx->user_ip6[3] = LOOPBACK6;
		ctx->user_port = port6;
	}
	return 1;
}

// The source of an IPv4 connection, and of another. (Both are read at once, as
// above.)
static __always_inline void read_sources(volatile struct bpf_sock_ops *ctx, struct endpoint *ipv4,
					 struct endpoint *ipv6)
{
	__u32 addr4 = ctx->local_ip4;
	__u32 first = ctx->local_ip6[0], second = ctx->local_ip6[1];
	__u32 third = ctx->local_ip6[2], fourth = ctx->local_ip6[3];

	ipv4->addr[1] = word(MAPPED, addr4);
	ipv6->addr[0] = word(first, second);
	ipv6->addr[1] = word(third, fourth);
	ipv4->port = ipv6->port = bpf_htons(ctx->local_port);
}

// The socket has its port now, and its SYN has not left.
SEC("sockops")
int note_source(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct endpoint ipv4 = {}, ipv6 = {};
	struct endpoint *noted;

	if (ctx->op != BPF_SOCK_OPS_TCP_CONNECT_CB || !sk)
		return 1;
	noted = bpf_sk_storage_get(&sockets, sk, 0, 0);
	if (!noted || !noted->port)
		return 1;
	read_sources(ctx, &ipv4, &ipv6);
	bpf_map_update_elem(&sources, is_mapped(noted) ? &ipv4 : &ipv6, noted, BPF_ANY);
	return 1;
}

SEC("cgroup/getpeername4")
int peer_ipv4(struct bpf_sock_addr *ctx)
{
	struct endpoint *noted = bpf_sk_storage_get(&sockets, ctx->sk, 0, 0);

	if (noted && noted->port) {
		ctx->user_ip4 = noted->addr[1] >> 32;
		ctx->user_port = noted->port;
	}
	return 1;
}

SEC("cgroup/getpeername6")
int peer_ipv6(struct bpf_sock_addr *ctx)
{
	struct endpoint *noted = bpf_sk_storage_get(&sockets, ctx->sk, 0, 0);

	if (noted && noted->port) {
		ctx->user_ip6[0] = noted->addr[0];
		ctx->user_ip6[1] = noted->addr[0] >> 32;
		ctx->user_ip6[2] = noted->addr[1];
		ctx->user_ip6[3] = noted->addr[1] >> 32;
		ctx->user_port = noted->port;
	}
	return 1;
}

struct caller {
	__u64 process;
};

// Not at a hook: run by a process that wants to know its id in the first PID
// namespace, which the other programs see.
SEC("syscall")
int identify(struct caller *caller)
{
	caller->process = bpf_get_current_pid_tgid() >> 32;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
