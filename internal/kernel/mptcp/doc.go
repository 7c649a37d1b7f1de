// Package mptcp accesses the kernel's Multipath TCP (RFC 8684): the events and commands of the userspace path manager,
// the state and metrics of connections and subflows, and the sysctls that choose a path manager. No other package of
// dcol accesses these.
//
// It deals with addresses, ports and tokens, not with waypoints, detours or policies. The agent, doctor and the lab may
// import it. Everything that the agent needs is in the interface [Kernel]: [Namespace] implements it on the real
// kernel, mptcptest.Fake in memory. A Namespace belongs to the network namespace of the thread that opened it.
//
// Addresses are always unmapped: a subflow of an IPv6 socket to an IPv4 address (::ffff:192.0.2.1) appears as IPv4, in
// both directions.
//
// docs/kernel-behaviour.md describes the kernel's behaviour in special cases, as found by experiment. The tests of this
// package check it.
//
// # Where to find what
//
//	kernel.go namespace.go          the interface, and opening its implementation
//	event.go decode.go              events
//	command.go errors.go            commands, and why the kernel refuses one
//	connection.go subflow.go        connections and subflows with their metrics
//	diag.go diagcodec.go ends.go    how these are read (sock_diag), and reports about ended sockets
//	counters.go                     statistics
//	sysctl*.go                      sysctls
//	feature.go limits.go overlap.go what the running kernel lacks
//	attributes.go receiver.go       netlink without allocations
//	uapi.go                         the kernel's numbers
package mptcp
