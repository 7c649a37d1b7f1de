// Package testbed builds small networks from kernel objects. Each host is a set of anonymous namespaces. Each
// link is a pair of interfaces with a rate, delay, jitter, loss and queue between them. Programs run on the
// hosts unmodified.
//
// No part of a network has a name outside of it. Every part ends with the process that built it, even if that
// is killed: a small init on each host holds the namespaces, and exits when its pipe to the builder closes.
//
// Call Stage first in main, and in TestMain of tests that build networks: hosts and link emulators run as the
// same executable.
//
// For lab packages, and for other tests that need a network. Needs root.
package testbed
