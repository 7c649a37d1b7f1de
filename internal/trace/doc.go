// Package trace finds the changes that a path makes to packets, and the places of these changes. It sends probes
// whose time to live ends at each hop, and compares the quotes in the routers' ICMP errors with the probes. It follows
// tracebox (G. Detal, "Evaluating and Improving the Deployability of Multipath TCP", 2014, chapter 3).
//
// The way of a probe, and of its answer:
//
//	probe --Build--> packet of each hop --sweep: when--> Network.Send
//	Network.Arrivals --matcher: whose--> Path.Hops --compare.Locate--> findings
//
// sweep.go decides when to send a probe. match.go decides to which probe an answer belongs. Neither reads a clock.
// trace.go runs them. The sockets are in trace/wire, the probe language in trace/probe, known questions in
// trace/recipe, scripts in trace/script, and the output in trace/present.
package trace
