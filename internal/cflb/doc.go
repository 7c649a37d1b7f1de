// Package cflb chooses paths through load-balancing routers by the ports of a flow: Controllable per-Flow Load
// Balancing (G. Detal, "Evaluating and Improving the Deployability of Multipath TCP", 2014, section 5.4). All of it
// is pure.
//
// The way of a choice, from the source to a router:
//
//	choices of next hops --Scheme.Encode (algorithm 5.2)--> path selector --Permutation--> controlled fields
//	controlled fields --Permutation's inverse--> path selector --Scheme.Next (algorithm 5.1)--> next hop
//
// field.go and label.go tell which fields of a packet are controlled. discover.go finds the routers and their next
// hops (algorithm 5.3). calibrate.go computes radix, length and width for a network.
package cflb
