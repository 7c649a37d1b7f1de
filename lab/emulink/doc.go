// Package emulink emulates links in user space: it reads packets from one TUN
// device and writes them to another after the time they would have taken over
// a line of given rate, delay, jitter, loss and queue. It can also lose packets
// in bursts, reorder, duplicate and damage them. It serves where the kernel has
// no netem, and measures how late it was itself.
//
// The wire is a process of its own, so that load in the process that asked for
// it does not disturb it: one thread, real-time where the system allows it,
// no allocation and no garbage collection while packets flow. A packet's way:
//
//	device A --read--> line.offer: queue, line, propagation --> write--> device B
//
// line.go and luck.go have all decisions and know no clock; damage.go changes
// what packets carry; loop.go has all system calls.
// For lab/testbed only.
package emulink
