// Package netstate is the door to the network state of the host's kernel: sysctls with a record
// that puts them back, addresses and routes, nftables tables, conntrack entries, listening ports.
// It knows nothing of waypoints or members; anything of ours except the pure packages may import it.
//
// Everything here acts on the network namespace of the thread that opens it: sockets stay in the
// namespace they were opened in, and /proc/sys/net shows the namespace of the thread that reads it.
// An agent lives in one namespace, so this matters only to tests, which open and read on a locked
// thread (see netnstest).
package netstate
