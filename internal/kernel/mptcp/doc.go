// Package mptcp accesses the kernel's Multipath TCP (RFC 8684): the events and commands of the userspace path
// manager, the state and metrics of connections and subflows, and the sysctls that choose a path manager. No
// other package of dcol's does.
//
// It deals with addresses, ports and tokens, not with waypoints, detours or policies. The agent, doctor and the
// lab may import it. Everything the agent needs is in the interface [Kernel]: [Namespace] implements it on the
// real kernel, mptcptest.Fake in memory.
//
// A Namespace belongs to the network namespace of the thread that opened it.
//
// Addresses are always unmapped: a subflow of an IPv6 socket to an IPv4
// address (::ffff:192.0.2.1) appears as IPv4, in both directions.
//
// docs/kernel-behaviour.md describes what the kernel does in special cases, as found by experiment. The tests of
// this package check it.
package mptcp
