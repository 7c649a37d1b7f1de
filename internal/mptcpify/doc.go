// Package mptcpify turns the TCP sockets of unmodified programs into MPTCP
// ones. It is what `dcol run` does, and it tells doctor which ways this host
// has. Only cmd/dcol, internal/agent and internal/doctor may import it.
//
// The way of `dcol run`, in the order in which the files are to be read:
//
//  1. [Exec] (exec.go) runs in the process that will become the program. It
//     starts a supervisor, puts a seccomp filter on its own thread, hands the
//     filter's listener to the supervisor, and executes the program in place.
//     So the program *is* the process the user started: its exit code, its
//     signals, its terminal and its job control are nobody else's business.
//  2. [Stage] (stage.go) is that supervisor's start. It is forked twice, so
//     that it is no child of the program (a program that waits for all its
//     children must not wait for it), and it sits in a session of its own with
//     none of the program's files open, so that a pipeline ends when the
//     program does. It starts a second one like itself (pair.go).
//  3. The filter (filter.go) stops the program only at socket(AF_INET or
//     AF_INET6, SOCK_STREAM, 0 or IPPROTO_TCP). Every other system call, and
//     every call of a foreign ABI, runs as if there were no filter.
//  4. The supervisor (supervisor.go) makes an MPTCP socket, installs it in the
//     program and returns its number from the program's call, in one step of
//     the kernel's. Whatever it cannot do rightly it leaves to the kernel, and
//     the program gets the plain TCP socket it asked for. It lives as long as
//     any descendant of the program has the filter, daemons too.
//  5. If one of the two supervisors is killed, the other sees it at once,
//     answers the calls that it had received and not answered, which are in
//     memory that both share (board.go), and starts another in its place.
//
// This reaches static programs, threads, children and daemons. It does not
// reach sockets that are made without the system call: io_uring's
// IORING_OP_SOCKET, sockets inherited from systemd, and programs of the 32-bit
// ABI. These stay TCP.
//
// What a user may notice:
//   - Making a socket takes some tens of microseconds more (BenchmarkSocket);
//     using it takes nothing more.
//   - Without CAP_SYS_ADMIN the kernel demands no_new_privs of whoever sets a
//     filter, so setuid programs (sudo, su, ping on some hosts) get no
//     privileges inside `dcol run`. As root nothing changes.
//   - A process can have one seccomp listener. A program that wants its own
//     (a container engine) is refused it with EBUSY.
//   - If both supervisors are killed by force at once, the kernel answers the
//     program's TCP socket() with ENOSYS from then on: a filter cannot be
//     removed or changed, and nobody else may hold its listener, as the kernel
//     keeps callers waiting while anybody does. Open connections live on. That
//     is why there are two, which ignore the polite signals, ask the kernel's
//     out-of-memory killer to pass them by, and allocate next to nothing.
//
// The other ways are the kernel's update_socket_protocol hook
// (internal/kernel/bpf/mptcpify) for a whole network namespace or a cgroup, and
// programs that ask for MPTCP themselves; [Methods] lists them all.
package mptcpify
