// Package testbed builds small networks out of real kernel objects: each host
// is a set of anonymous namespaces, each link a pair of interfaces with rate,
// delay, jitter, loss and a queue between them. Programs run on the hosts
// unmodified.
//
// Nothing of a network has a name outside of it, and every part ends when the
// process that built it does, however that ends: each host's namespaces are
// held by a tiny init that lives as long as a pipe to the builder is open.
//
// Stage must be the first call of main, and of TestMain in tests that build
// networks: hosts and wires start as the same executable.
//
// For lab packages, and for tests of ours that need a network; needs root.
package testbed
