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
//
// One number is not measured: how often the connection's data stands still because of a detour, while other subflows
// bring later data. It shows that a detour does harm, but neither how much nor what the connection would have without
// it. A long detour that carries most of the data stands still as often as one that only delays the others. Package
// path compares amounts of data instead: what the others missed, and what waits, against what the detour carried
// (burden.go). It also compares rates with and without the detour (omit.go). Standing still is used as the sign of a
// silent detour (holdsUp in silence.go).
package measure
