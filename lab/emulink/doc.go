// Package emulink emulates links in user space. It reads packets from one TUN device, and writes them to
// another after the time that a link of given rate, delay, jitter, loss and queue would take. It can also
// lose packets in bursts, reorder, duplicate and damage them. It is for kernels without netem, and measures
// its own lateness.
//
// The emulator runs in a process of its own, so that load in the caller's process does not disturb it. It has
// one thread, with real-time priority where the system allows it, and neither allocates nor collects garbage
// while packets flow. A packet's way:
//
//	device A --read--> pipe.offer: queue, transmitter, propagation --write--> device B
//
// pipe.go, impair.go and reorder.go make all decisions and read no clock. damage.go changes packets' data.
// loop.go makes all system calls.
// For lab/testbed only.
package emulink
