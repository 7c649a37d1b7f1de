// Package netstate accesses the network state of the host's kernel: sysctls with a record for
// restoring them, addresses and routes, nftables tables, conntrack entries, listening ports.
//
// Everything acts on the network namespace of the thread that opens it: sockets stay in the
// namespace they were opened in, and /proc/sys/net shows the namespace of the reading thread. An
// agent uses one namespace, so this matters only to tests, which open and read on a locked thread
// (see netnstest).
package netstate
