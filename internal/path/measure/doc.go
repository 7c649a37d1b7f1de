// Package measure estimates how subflows perform: goodput, round trips and their queues, lost packets, and the kind
// of a connection's traffic. It uses samples of the counters that the kernel keeps. It is pure: the caller passes the
// time and what happened since the last sample. The estimates cover the last seconds and use a fixed amount of
// memory.
//
// The files answer these questions:
//
//	window.go     what happened in the last seconds?
//	loss.go       which share of the packets was lost, seen by the receiver and by the sender?
//	evidence.go   is that more than a path may lose, with a known rate of false alarms?
//	gaps.go       how long are the gaps between arrivals?
//	answers.go    how long do answers to requests take?
//	trip.go       how long is a round trip, and the queue in it?
//	rate.go       what is the goodput?
//	steady.go     has the rate of a new subflow ceased to grow?
//	press.go      does the network limit the goodput?
//	fall.go       did the goodput fall?
//	agreement.go  do packets of two paths wait in one queue?
//	sharing.go    do two paths share a bottleneck?
//	traffic.go    which kind is a connection's traffic?
//	interval.go   how certain is a share of lost packets?
package measure
