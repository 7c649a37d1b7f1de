//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only
// BALIA as a congestion control of the kernel. See arithmetic.h for its equations.
#include "coupled.h"

SEC("struct_ops")
void BPF_PROG(balia_init, struct sock *sk) { begin(sk); }

SEC("struct_ops")
void BPF_PROG(balia_set_state, struct sock *sk, __u8 new_state) { note_loss(sk, new_state); }

SEC("struct_ops")
void BPF_PROG(balia_cong_avoid, struct sock *sk, __u32 ack, __u32 acked) { avoid(sk, ack, acked, balia_increment); }

SEC("struct_ops")
__u32 BPF_PROG(balia_ssthresh, struct sock *sk)
{
	struct subflows s;
	__u64 down;

	if (!look(sk, &s))
		return tcp_reno_ssthresh(sk);
	down = balia_decrease(&s);
	return s.own_window > down + 2 ? s.own_window - down : 2;
}

SEC("struct_ops")
__u32 BPF_PROG(balia_undo_cwnd, struct sock *sk) { return tcp_reno_undo_cwnd(sk); }

SEC(".struct_ops.link")
struct tcp_congestion_ops balia = {
	.init = (void *)balia_init,
	.set_state = (void *)balia_set_state,
	.cong_avoid = (void *)balia_cong_avoid,
	.ssthresh = (void *)balia_ssthresh,
	.undo_cwnd = (void *)balia_undo_cwnd,
	.name = "balia",
	.flags = TCP_CONG_NON_RESTRICTED,
};

char _license[] SEC("license") = "GPL";
