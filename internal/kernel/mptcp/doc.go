// Package mptcp is dcol's only door to the kernel's Multipath TCP (RFC 8684):
// the events and commands of the userspace path manager, the state and metrics
// of connections and subflows, and the sysctls that choose a path manager.
//
// It knows addresses, ports and tokens, and nothing of waypoints, detours or
// policies. It imports nothing of ours; the agent, doctor and the lab may
// import it. Everything the agent needs is in the interface [Kernel]:
// [Namespace] is the real one, mptcptest.Fake is one in memory.
//
// A Namespace belongs to the network namespace of the thread that opened it.
//
// Addresses are always unmapped: a subflow of an IPv6 socket to an IPv4
// address (::ffff:192.0.2.1) appears as IPv4, in both directions.
//
// What the kernel does in the corners, found by experiment, is written down in
// docs/kernel-behaviour.md and checked by the tests of this package.
package mptcp
