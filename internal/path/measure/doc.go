// Package measure estimates how subflows perform, from samples of the counters that the kernel keeps for them: goodput,
// round trips and their queueing, lost packets, and what kind of traffic a connection carries. It is pure: it is told
// the time and what happened since the last sample. Its estimates cover the last seconds in a fixed amount of memory.
//
//	window.go     counts of the last seconds
//	loss.go       the share of packets lost, as the receiver and as the sender sees it
//	evidence.go   whether that is more than a path may lose, with a known rate of false alarms
//	gaps.go       gaps between arrivals
//	trip.go       round trips
//	rate.go       goodput
//	press.go      whether the network limits it
//	fall.go       whether it fell
//	agreement.go  whether packets of two paths wait in one queue
//	sharing.go    whether two paths share a bottleneck
//	traffic.go    the kind of a connection's traffic
package measure
