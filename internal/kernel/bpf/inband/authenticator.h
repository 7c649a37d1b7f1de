// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The authenticator of a SYN; authenticator.go has the same in Go.
#pragma once
#include <linux/types.h>

#define MESSAGE_SIZE 20 // client, client port, server, server port, sequence number, TSval

struct key {
	__u64 half[2];
};

// The message as SipHash takes it: words of eight bytes, little-endian, the
// last one with the length in its highest byte. Fields are in the order of the
// network, as packets have them.
struct message {
	__u64 word[3];
};

static __always_inline struct message message(__be32 client, __be16 client_port, __be32 server, __be16 server_port,
					      __be32 seq, __be32 tsval)
{
	struct message m = {{
		client | (__u64)client_port << 32 | (__u64)(server & 0xffff) << 48,
		server >> 16 | (__u64)server_port << 16 | (__u64)seq << 32,
		tsval | (__u64)MESSAGE_SIZE << 56,
	}};
	return m;
}

static __always_inline __u64 rotate_left(__u64 v, int bits)
{
	return v << bits | v >> (64 - bits);
}

struct sip {
	__u64 v0, v1, v2, v3;
};

static __always_inline void sip_round(struct sip *s)
{
	s->v0 += s->v1;
	s->v1 = rotate_left(s->v1, 13) ^ s->v0;
	s->v0 = rotate_left(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = rotate_left(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rotate_left(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rotate_left(s->v1, 17) ^ s->v2;
	s->v2 = rotate_left(s->v2, 32);
}

static __always_inline void sip_absorb(struct sip *s, __u64 word)
{
	s->v3 ^= word;
	sip_round(s);
	sip_round(s);
	s->v0 ^= word;
}

// The low half of SipHash-2-4 (Aumasson and Bernstein, 2012).
static __always_inline __u32 authenticator(const struct key *k, const struct message *m)
{
	struct sip s = {
		k->half[0] ^ 0x736f6d6570736575ULL,
		k->half[1] ^ 0x646f72616e646f6dULL,
		k->half[0] ^ 0x6c7967656e657261ULL,
		k->half[1] ^ 0x7465646279746573ULL,
	};

	sip_absorb(&s, m->word[0]);
	sip_absorb(&s, m->word[1]);
	sip_absorb(&s, m->word[2]);
	s.v2 ^= 0xff;
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
