// Package paths finds the load-balanced paths to a destination, and which source port leads along which. It follows the
// multipath detection algorithm of Paris traceroute (D. Veitch et al., "Failure Control in Multipath Route Tracing",
// INFOCOM 2009), and its lighter variant where that is sound (K. Vermeulen et al., "Multilevel MDA-Lite Paris
// Traceroute", IMC 2018).
//
// A flow is a source port; all its probes have equal fields where routers look. The way to a graph:
//
//	explorer: which flow to which distance --Prober.Probe--> answers --explorer.seen--> Graph --Distinct--> ports
//
// stop.go has the number of probes that the failure bound needs. full.go and light.go decide which probes are sent;
// neither reads a clock. wireprober.go sends and matches them over a trace.Network.
package paths
