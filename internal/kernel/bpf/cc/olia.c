//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only
// OLIA as a congestion control of the kernel. See arithmetic.h for its equations.
#include "coupled.h"

SEC("struct_ops")
void BPF_PROG(olia_init, struct sock *sk) { begin(sk); }

SEC("struct_ops")
void BPF_PROG(olia_set_state, struct sock *sk, __u8 new_state) { note_loss(sk, new_state); }

SEC("struct_ops")
void BPF_PROG(olia_cong_avoid, struct sock *sk, __u32 ack, __u32 acked) { avoid(sk, ack, acked, olia_increment); }

SEC("struct_ops")
__u32 BPF_PROG(olia_ssthresh, struct sock *sk)
{
	return tcp_reno_ssthresh(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(olia_undo_cwnd, struct sock *sk) { return tcp_reno_undo_cwnd(sk); }

SEC(".struct_ops.link")
struct tcp_congestion_ops olia = {
	.init = (void *)olia_init,
	.set_state = (void *)olia_set_state,
	.cong_avoid = (void *)olia_cong_avoid,
	.ssthresh = (void *)olia_ssthresh,
	.undo_cwnd = (void *)olia_undo_cwnd,
	.name = "olia",
	.flags = TCP_CONG_NON_RESTRICTED,
};

char _license[] SEC("license") = "GPL";
