// Package paths finds the load-balanced paths to a destination, and the source ports that lead along each. It uses the
// multipath detection algorithm of Paris traceroute (D. Veitch et al., "Failure Control in Multipath Route Tracing",
// INFOCOM 2009), and its lighter variant where that is sound (K. Vermeulen et al., "Multilevel MDA-Lite Paris
// Traceroute", IMC 2018).
//
// A flow is a source port. All probes of a flow are equal in the fields by which routers balance load. A probe whose
// time to live ends at a distance shows the router that the flow passes there.
//
//	explorer: which flow to which distance --Prober.Probe--> answers --explorer.probe--> Graph --Distinct--> ports
//
// The packages below: finder searches ports for a client; topology reads the graph of a known network, and known
// computes paths through it; pathserver tells members of a collective these paths; present shows results.
//
//	explore.go                  Explore: the loop over distances; Options, Prober
//	full.go light.go            which probes are sent, by either variant
//	stop.go                     how many probes the failure bound needs
//	complete.go alias.go        more flows on known paths
//	graph.go                    the result: vertices, edges, paths
//	measure.go                  loss and round trips of paths; the path of a session
//	routed.go                   paths through routers that use a CFLB scheme
//	wireprober.go               Wire: sends probes over a trace.Network and matches answers
//
// The code that decides which probes are sent reads no clock.
package paths
