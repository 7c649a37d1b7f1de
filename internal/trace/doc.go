// Package trace finds out what a path does to packets, and where. It sends probes whose time to live ends at
// each hop, and compares what the routers' ICMP errors quote with what was sent. It follows tracebox
// (G. Detal, "Evaluating and Improving the Deployability of Multipath TCP", 2014, chapter 3).
//
// A trace's way:
//
//	probe --Build--> packet of each hop --sweep: when--> Network.Send
//	Network.Arrivals --matcher: whose--> Path.Hops --compare.Locate--> findings
//
// sweep.go and match.go decide and read no clock. trace.go runs them. The sockets are in trace/wire, the probe
// language in trace/probe, known questions in trace/recipe, scripts in trace/script, and the output in
// trace/present.
package trace
