// SPDX-License-Identifier: GPL-2.0-only
// The kernel's structures, as far as the programs read them. The loader finds each field's offset in the running
// kernel's BTF (CO-RE), so the layout here does not matter.
#pragma once
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#define TCP_ESTABLISHED 1
#define TCP_CA_OPEN 0
#define TCP_CA_RECOVERY 3
#define TCP_CA_LOSS 4
#define TCP_CONG_NON_RESTRICTED 1 // else EPERM outside of the first network namespace

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head {
	struct list_head *next;
};

struct sock_common {
	volatile unsigned char skc_state;
};

struct sock {
	struct sock_common __sk_common;
};

struct inet_connection_sock {
	void *icsk_ulp_data; // of an MPTCP subflow its mptcp_subflow_context
	const struct tcp_congestion_ops *icsk_ca_ops;
	__u64 icsk_ca_priv[13];
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 snd_cwnd, snd_ssthresh, snd_cwnd_clamp;
	__u32 srtt_us; // times eight
	__u32 max_packets_out;
	__u64 bytes_acked;
	__u32 snd_nxt;
	__u8 is_cwnd_limited : 1;
	bool is_mptcp;
};

struct mptcp_subflow_context {
	struct list_head node; // in the connection's conn_list
	struct sock *conn;     // the MPTCP socket
	struct sock *tcp_sock;
};

struct mptcp_sock {
	struct list_head conn_list;
};

struct ack_sample {
	__s32 rtt_us; // negative: not measured
};

enum tcp_ca_event {
	CA_EVENT_TX_START,    // the first packet after all were acknowledged
	CA_EVENT_CWND_RESTART, // after a pause
};

#pragma clang attribute pop

// The registered structure. The loader matches its members by name.
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*init)(struct sock *sk);
	char name[16];
	__u32 flags;
};

extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;
extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 tcp_slow_start(struct tcp_sock *tp, __u32 acked) __ksym;
extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym;

// Set before loading, to have each ACK recorded for a test that compares it with the model. Otherwise the verifier removes
// what records. The size is set before loading, too: it is one of whole pages.
volatile const __u32 recording;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} records SEC(".maps");
