// Package emulink emulates links in user space. It reads packets from one TUN device, and writes them to another after
// the time that a link of given rate, delay, jitter, loss and queue would take. It can also lose packets in bursts,
// reorder, duplicate and damage them. It is for kernels without netem, and measures its own lateness.
//
// The emulator runs in a process of its own, so that load in the caller's process does not disturb it. It has one
// thread, with real-time priority where the system allows it. While packets flow, the thread neither allocates nor
// collects garbage, except for middleboxes. A packet passes these stages:
//
//	device A --read--> pipe.offer: queue, transmitter, propagation --write--> device B
//
// The caller's side is in client.go and params.go, the process in process.go and realtime.go. loop.go makes all system
// calls, and sleep.go decides how long it sleeps. pipe.go, impair.go, reorder.go and radio.go decide on each packet,
// and read no clock. damage.go changes packets' data. station.go connects middleboxes and routers (package middlebox)
// to the loop.
//
// For lab/testbed only.
package emulink
