// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Has a program at a cgroup's sockets called with each segment that a subflow of an MPTCP connection sends.
#define OPTION_MPTCP 30 // RFC 8684
#define OPTION_LONGEST 40
#define SUBTYPE_JOIN 1 // 0 is MP_CAPABLE, of the first subflow

// follow has the program called for HDR_OPT_LEN from now on, if the socket that has just connected is a subflow's. Programs
// write no option: that is how they come to a socket that receives nothing.
static __always_inline void follow(struct bpf_sock_ops *ctx)
{
	__u64 option[OPTION_LONGEST / 8] = {OPTION_MPTCP};

	// The option of the SYN-ACK says whether it is a subflow.
	if (bpf_load_hdr_opt(ctx, option, sizeof(option), 0) < 0 || (option[0] >> 20 & 0xf) > SUBTYPE_JOIN)
		return;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}
