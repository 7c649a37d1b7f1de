// Package mptcpify turns the TCP sockets of unmodified programs into MPTCP sockets. It implements `dcol run`, and
// reports to doctor which methods work on this host. Only cmd/dcol, internal/agent and internal/doctor may import it.
//
// # From a system call to an MPTCP socket
//
//  1. [Exec] runs in the process that will become the program. It starts a supervisor, installs a seccomp filter on its
//     own thread, hands the filter's listener to the supervisor, and executes the program in place. So the program is
//     the process that the user started, with its own exit code, signals, terminal and job control.
//  2. [Stage] runs the supervisor. It is forked twice, so that it is not a child of the program, which may wait for all
//     its children. It has its own session and keeps none of the program's files open, so that a pipeline ends when
//     the program does.
//  3. The filter stops the program at socket(AF_INET or AF_INET6, SOCK_STREAM, 0 or IPPROTO_TCP). If a relay to
//     converters listens when the program starts, the filter also stops it at connect() and getpeername(). All other
//     system calls, and all calls of a foreign ABI, run as if there were no filter.
//  4. The supervisor makes an MPTCP socket, installs it in the program and returns its number from the program's call.
//     If that fails, the kernel continues the call, and the program gets the TCP socket that it requested. The
//     supervisor lives until no process has the filter any more: the program, its descendants and daemons.
//
// There are two supervisors for each filter. One answers, the other waits. If one is killed, the other starts a new one.
// If the killed one was answering, the other answers from then on, and first the calls that were left unanswered. It
// finds them in memory that both share, the board.
//
// # From connect() to a converter
//
// With a relay to converters (internal/converter/ask), the supervisor also answers connect():
//
//  1. The call continues at once for addresses of this host and its links, and for servers that are to be reached
//     directly according to an earlier answer of the relay. For other servers a goroutine duplicates the caller's socket
//     and asks the relay. Only unconnected MPTCP sockets in the relay's network namespace are led to converters.
//  2. A blocking socket is connected to the converter, and names the server in a Convert message (RFC 8803). connect()
//     returns when the converter has reached the server. From then on the socket belongs to the program alone, and no
//     process of dcol is on its data path.
//  3. A non-blocking socket is bound to a port and connected to the relay, which is told the server of the connection
//     from that port. connect() returns EINPROGRESS at once. The relay forwards the data.
//  4. getpeername() returns the server's address in both cases. It is found on the board by the socket's cookie.
//
// All this happens to the program's own socket, so that its duplicates, options and places in epoll sets stay. If the
// converter fails, the socket is disconnected (connect(AF_UNSPEC), after which an MPTCP socket can be used again), and
// the kernel carries out the program's connect() to the server. The same happens if the supervisor is killed meanwhile:
// the other one finds the call on the board and disconnects the socket.
//
// If the relay has no converter for a server and knows that the server speaks no MPTCP, the program's socket is replaced
// by a TCP socket with the same number and options. That is only done where nobody can notice: the process has one
// thread, which waits in connect(), and nothing else refers to the socket.
//
// # Where to find what
//
//	exec.go stage.go                  how the program and the supervisors start
//	filter.go filter_*.go             at which system calls the filter stops
//	seccomp.go                        installing the filter, receiving calls and answering them
//	supervisor.go                     a supervisor and its workers; socket()
//	pair.go board.go                  two supervisors; the memory that they share
//	caller.go memory.go               what /proc and the memory of a calling thread show
//	connect.go                        connect(): directly, to a converter or to the relay; how it is undone
//	callersocket.go                   the socket of a connect() call
//	toconverter.go reach.go           from a socket to a converter's answer, with or without TCP Fast Open
//	peername.go                       getpeername()
//	plain.go made.go                  replacing a socket by a TCP socket; whether anybody could notice
//	quickly.go                        system calls that Go's scheduler is not told of
//	methods.go errors.go              other methods, for doctor; errors and exit codes
//
// # Words
//
//   - caller: the thread of a program that waits for the answer to a system call.
//   - continue: the kernel carries out the caller's system call as if there were no filter.
//   - lead: to connect a program's socket to a converter or to the relay. A lead is such a connect() call.
//   - plain: a server is plain if it is known to speak no MPTCP.
//   - side: a supervisor's index on the board, 0 or 1.
//   - worker: a goroutine of a supervisor that receives and answers calls. If a caller's memory cannot be read soon,
//     because it is a file whose server is away, another worker answers the next calls.
//
// # What is not covered
//
// Static programs, threads, children and daemons are covered. Sockets stay TCP if they are made without the system call:
// by io_uring's IORING_OP_SOCKET, by systemd, which passes them on, and by programs of the 32-bit ABI.
//
// Connections go directly to their servers if they begin without connect() (MSG_FASTOPEN, TCP_FASTOPEN_CONNECT,
// io_uring's IORING_OP_CONNECT), if the program has set SO_BINDTODEVICE, or if it has bound a non-blocking socket.
//
// To lead connect(), the supervisor needs the right to trace the program (ptrace(2)). Connections go directly without
// it: those of programs that are not dumpable, and under Yama, for users other than root, those of all processes but the
// first (ptrace_scope 1) or of all (2 and 3).
//
// Other methods are the kernel's update_socket_protocol hook (internal/kernel/bpf/mptcpify) for a network namespace or a
// cgroup, and programs that request MPTCP themselves. [Methods] lists all of them.
//
// # What users may notice
//
//   - Making a socket takes some tens of microseconds longer (BenchmarkSocket), and some hundreds if the supervisor has
//     slept and the processors are busy (BenchmarkDial). Using a socket takes no longer.
//   - With a relay to converters, connect() to a server that is reached directly, and getpeername(), take some tens of
//     microseconds longer, too (BenchmarkConnect). That includes connect() of UDP sockets and getpeername() of all
//     sockets, because a filter sees only numbers.
//   - Without CAP_SYS_ADMIN the kernel requires no_new_privs for a filter. Setuid programs (sudo, su, ping on some
//     hosts) then get no privileges inside `dcol run`. As root nothing changes.
//   - A process can have one seccomp listener. A program that installs its own, such as a container engine, gets EBUSY.
//   - While a blocking connect() waits for a converter, signals that the program handles wait, too. Other signals end
//     the program as always. If the converter fails and the program has set SO_SNDTIMEO, signals wait for the direct
//     connection as well.
//   - getsockname() of a connection through a converter returns this host's address and port as usual. If the connection
//     goes to the relay, it returns a loopback address.
//   - A non-blocking connect() to the relay succeeds before the server is reached. If the server cannot be reached, the
//     connection is reset (docs/converter.md, "Why a refusal is a reset").
//   - Processes outside of `dcol run` that get a socket which was led see its real peer.
//   - If both supervisors are killed at once, the kernel answers the program's TCP socket() with ENOSYS from then on.
//     Open connections survive. A filter cannot be removed or changed, and no third process may hold its listener,
//     because the kernel keeps callers waiting while one does. So supervisors ignore termination signals, ask the
//     kernel's out-of-memory killer to spare them, and allocate almost no memory.
package mptcpify
