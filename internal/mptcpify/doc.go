// Package mptcpify turns the TCP sockets of unmodified programs into MPTCP sockets. It implements `dcol run`, and
// reports to doctor which methods work on this host. Only cmd/dcol, internal/agent and internal/doctor may import
// it.
//
// `dcol run` works as follows. Read the files in this order:
//
//  1. [Exec] (exec.go) runs in the process that will become the program. It
//     starts a supervisor, puts a seccomp filter on its own thread, hands the
//     filter's listener to the supervisor, and executes the program in place.
//     So the program is the process that the user started, with its own exit
//     code, signals, terminal and job control.
//  2. [Stage] (stage.go) starts that supervisor. It is forked twice, so that
//     it is not a child of the program: a program that waits for all its
//     children must not wait for it. It has a session of its own and none of
//     the program's files open, so that a pipeline ends when the program does.
//     It starts a second supervisor (pair.go).
//  3. The filter (filter.go) stops the program only at socket(AF_INET or
//     AF_INET6, SOCK_STREAM, 0 or IPPROTO_TCP). Every other system call, and
//     every call of a foreign ABI, runs as if there were no filter.
//  4. The supervisor (supervisor.go) makes an MPTCP socket, installs it in the
//     program and returns its number from the program's call. If it cannot do
//     that, the kernel continues the call, and the program gets the plain TCP
//     socket that it requested. The supervisor lives as long as any descendant
//     of the program has the filter, including daemons.
//  5. If one of the two supervisors is killed, the other notices at once. It
//     answers the calls that the killed one had received but not answered,
//     which are in shared memory (board.go), and starts a new one.
//
// This covers static programs, threads, children and daemons. It does not
// cover sockets that are made without the system call: io_uring's
// IORING_OP_SOCKET, sockets inherited from systemd, and programs of the 32-bit
// ABI. These stay TCP.
//
// What a user may notice:
//   - Making a socket takes some tens of microseconds longer (BenchmarkSocket).
//     Using it takes no longer.
//   - Without CAP_SYS_ADMIN the kernel requires no_new_privs for setting a
//     filter, so setuid programs (sudo, su, ping on some hosts) get no
//     privileges inside `dcol run`. As root nothing changes.
//   - A process can have one seccomp listener. A program that installs its own
//     (a container engine) gets EBUSY.
//   - If both supervisors are killed by force at once, the kernel answers the
//     program's TCP socket() with ENOSYS from then on. A filter cannot be
//     removed or changed, and no other process may hold its listener, because
//     the kernel keeps callers waiting while one does. Open connections
//     survive. Therefore there are two supervisors. They ignore termination
//     signals, ask the kernel's out-of-memory killer to spare them, and
//     allocate almost no memory.
//
// Other methods are the kernel's update_socket_protocol hook
// (internal/kernel/bpf/mptcpify) for a whole network namespace or a cgroup, and
// programs that request MPTCP themselves. [Methods] lists all of them.
package mptcpify
