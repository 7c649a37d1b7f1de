//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// mptcpify makes the TCP sockets of one network namespace, or of one cgroup in
// it, MPTCP at birth. The kernel calls update_socket_protocol() in socket(2)
// for this very purpose (since 6.6).
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define SOCK_NONBLOCK 04000
#define SOCK_CLOEXEC 02000000
#define IPPROTO_TCP 6
#define IPPROTO_MPTCP 262

// The parts of the kernel's structures that are read; CO-RE finds where they
// are on the running kernel.
struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

struct nsproxy {
	struct net *net_ns;
} __attribute__((preserve_access_index));

struct task_struct {
	struct nsproxy *nsproxy;
} __attribute__((preserve_access_index));

// Set before loading.
volatile const __u32 network_namespace; // inode number, as in /proc/PID/ns/net
volatile const bool only_cgroup;	// scope[0] says which

struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} scope SEC(".maps");

// The returned protocol replaces the caller's. Once a program on this hook has
// returned something other than 0, the kernel asks no further one.
SEC("fmod_ret/update_socket_protocol")
int BPF_PROG(mptcpify, int family, int type, int protocol)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (family != AF_INET && family != AF_INET6)
		return protocol;
	// The kernel has not taken the flags off yet.
	if ((type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_STREAM)
		return protocol;
	if (protocol && protocol != IPPROTO_TCP)
		return protocol;
	if (task->nsproxy->net_ns->ns.inum != network_namespace)
		return protocol;
	if (only_cgroup && bpf_current_task_under_cgroup(&scope, 0) != 1)
		return protocol;
	return IPPROTO_MPTCP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
