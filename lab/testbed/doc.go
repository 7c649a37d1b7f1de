// Package testbed builds small networks from kernel objects. Each host is a set of anonymous namespaces. Each link is a
// pair of interfaces with a rate, delay, jitter, loss and queue between them. Programs run on the hosts unmodified.
//
// No part of a network has a name outside of it. Every part ends with the process that built it, even if that is
// killed: a small init on each host holds the namespaces, and exits when its pipe to the builder closes.
//
// Call Stage first in main, and in TestMain of tests that build networks: hosts and link emulators run as the same
// executable.
//
// The caller describes a network by a Spec (spec.go). Build validates it, plans names, addresses and routes (plan.go,
// route.go), starts the hosts (stage.go, host.go, files.go), and lets a backend connect them (emulated.go, netem.go,
// veth.go). Then it configures interfaces, kernel parameters and routes (configure.go). network.go has Build and the
// changes to a running network, command.go the programs, move.go the changes of addresses, blackhole.go, middlebox.go
// and nat.go what routers do to packets.
//
// For lab packages, and for other tests that need a network. Needs root.
package testbed
