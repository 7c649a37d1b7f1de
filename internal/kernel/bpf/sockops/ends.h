// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The addresses and ports by which programs at a cgroup's sockets know a subflow, as Ends in sockops.go has them. The
// machine must be little-endian, as for all of our programs.
#define AF_INET 2

// Words of eight bytes. Programs of these packages keep all that is on the stack in such words: without CAP_PERFMON, Linux 6.1
// refuses to have a part of a word written whose value it follows. IPv4 addresses, also those of IPv6 sockets, are in
// the second of their words; all is in the order of the network.
struct subflow {
	__u64 local[2];
	__u64 remote[2];
	__u64 ports; // local in the low half, remote in the high one
};

// Two words at a time, which the verifier takes one by one only.
static __always_inline __u64 two(volatile __u32 *words)
{
	__u32 first = words[0], second = words[1];

	return first | (__u64)second << 32;
}

static __always_inline struct subflow ends(struct bpf_sock_ops *ctx)
{
	struct subflow s = {.ports = bpf_htons(ctx->local_port) | (__u64)(ctx->remote_port >> 16) << 32};

	if (ctx->family == AF_INET) {
		s.local[1] = ctx->local_ip4;
		s.remote[1] = ctx->remote_ip4;
	} else {
		s.local[0] = two(&ctx->local_ip6[0]);
		s.local[1] = two(&ctx->local_ip6[2]);
		s.remote[0] = two(&ctx->remote_ip6[0]);
		s.remote[1] = two(&ctx->remote_ip6[2]);
		if (!s.remote[0] && (__u32)s.remote[1] == bpf_htonl(0xffff)) {
			s.local[1] >>= 32;
			s.remote[1] >>= 32;
		}
	}
	return s;
}
