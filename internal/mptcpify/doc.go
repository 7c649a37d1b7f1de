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
//     It starts a second supervisor (pair.go), which waits.
//  3. The filter (filter.go) stops the program at socket(AF_INET or
//     AF_INET6, SOCK_STREAM, 0 or IPPROTO_TCP). If the agent has a relay to
//     converters when the program starts, it also stops at connect() and
//     getpeername(). Every other system call, and every call of a foreign ABI,
//     runs as if there were no filter.
//  4. The supervisor (supervisor.go) makes an MPTCP socket, installs it in the
//     program and returns its number from the program's call. If it cannot do
//     that, the kernel continues the call, and the program gets the plain TCP
//     socket that it requested. The supervisor lives as long as any descendant
//     of the program has the filter, including daemons.
//     If a caller's memory cannot be read soon, as that of a file whose server
//     is away, another worker of the supervisor answers the next calls.
//  5. If one of the two supervisors is killed, the other notices at once and
//     starts a new one. If it was the one that answers, the other answers from
//     then on, first the calls that the killed one had received but not
//     answered, which are in shared memory (board.go).
//
// With a relay to converters (internal/converter/ask), these files follow:
//
//  1. connect() (connect.go) goes on at once for this host's and its links'
//     addresses, and for servers that the relay wants to be reached directly (its
//     answer holds for a time). That takes one look into the caller's memory. For the
//     rest a goroutine duplicates the caller's socket (callersocket.go) and asks
//     the relay. Only unconnected MPTCP sockets of the relay's network
//     namespace are led to converters.
//  2. A blocking socket (toconverter.go) is connected to the converter, which
//     is asked for the server with a Convert message (RFC 8803). When the
//     server has answered, so has connect(), with 0 or the server's error. Then
//     the socket is the program's alone: no process of ours is on its data path.
//  3. A non-blocking socket gets a port, the relay is told for which server a
//     connection from it is, and the socket is connected to the relay. connect()
//     returns EINPROGRESS at once. The relay reads and writes the data.
//  4. getpeername() (peername.go) returns the server's address for both. The
//     supervisors find it in a table on the board, by the socket's cookie.
//
// A server that the relay knows to speak no MPTCP, and has no converter for, gets a TCP connection (plain.go): the
// program's MPTCP socket is replaced under its number, with the options that it has. That is done only where nobody can
// notice (made.go): the process has one thread, which waits in connect(), and nothing else refers to the socket. The
// others stay MPTCP sockets.
//
// The rest happens to the program's own socket, so that its duplicates, its
// options, and its place in epoll sets stay. A socket whose converter fails is
// disconnected (connect(AF_UNSPEC), after which MPTCP sockets can be used again),
// and the kernel carries out the program's connect() to the server. The same
// happens if the supervisor is killed in the middle: the other one finds the
// call on the board, resets what there is of a connection, and lets the call go on.
// A call that was answered is known by its id, and its connection left alone.
//
// This covers static programs, threads, children and daemons. It does not
// cover sockets that are made without the system call: io_uring's
// IORING_OP_SOCKET, sockets inherited from systemd, and programs of the 32-bit
// ABI. These stay TCP. Connections that begin without connect() go directly to
// their servers, as do those of sockets that the program has restricted so:
// MSG_FASTOPEN and TCP_FASTOPEN_CONNECT, io_uring's IORING_OP_CONNECT,
// SO_BINDTODEVICE, and non-blocking sockets that the program has bound.
//
// What a user may notice:
//   - Making a socket takes some tens of microseconds longer (BenchmarkSocket),
//     and some hundreds if the supervisor has slept and the processors are busy
//     (BenchmarkDial). Using it takes no longer.
//   - Without CAP_SYS_ADMIN the kernel requires no_new_privs for setting a
//     filter, so setuid programs (sudo, su, ping on some hosts) get no
//     privileges inside `dcol run`. As root nothing changes.
//   - A process can have one seccomp listener. A program that installs its own
//     (a container engine) gets EBUSY.
//   - With a relay to converters, connect() to a server that is reached
//     directly and getpeername() take some tens of microseconds longer, too
//     (BenchmarkConnect). connect() of UDP sockets and getpeername() of any
//     socket are among them, as a filter sees numbers only.
//   - While a blocking connect() waits for a converter, signals that the program
//     handles wait, too. Others end it as always. If the converter fails and the
//     program has set SO_SNDTIMEO, they wait for the direct connection as well.
//   - getsockname() of a connection through a converter returns the address
//     and port of this host as usual, but a loopback address if it goes to the
//     relay. A non-blocking connect() to the relay succeeds before the server is
//     reached. If the server cannot be reached, the connection is reset
//     (docs/converter.md, "Why a refusal is a reset").
//     Processes outside of `dcol run` that get such a socket see its real peer.
//   - Leading connect() needs the right to trace the program (ptrace(2)).
//     Without it, connections go directly: for programs that are not dumpable,
//     and for users other than root where Yama's ptrace_scope is 1 for all
//     processes but the first, or higher.
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
