// Package netstate reads and changes the network state of the host's kernel.
//
// A handle or subscription belongs to the network namespace of the thread that opened it, and can be used on any
// thread. Functions without a handle act in the namespace of the calling thread. /proc/sys/net also shows that of the
// reading thread. An agent uses one namespace, so this matters only to tests, which open and read on a locked thread
// (package netnstest).
//
// # Where to find what
//
//	sysctl.go record*.go               sysctls, and a record of changed ones, to restore them after a crash
//	addresses.go uplinks.go watch.go   this host's addresses, and changes of them
//	network.go                         what identifies the network that this host is on
//	interfaces.go                      interfaces that are up
//	links.go gateway.go firsthops.go   neighbouring networks and routers, towards the Internet
//	ports.go listeners.go holders.go   local ports, and the programs that use them
//	tunnel*.go                         addresses, rules, routes and MTUs of our tunnels' interfaces
//	markedtable.go                     rules and routes for packets with a mark
//	multipath*.go                      routes with several next hops
//	conntrack*.go                      connection tracking: list, change, delete, events
//	marks.go                           other programs' rules that use marks of packets
//	nft/                               nftables tables
//	dump.go                            repeating lists that changed while they were read
package netstate
