// Package known computes the paths of flows through a network of CFLB routers whose graph and constants are
// known, and places large flows on the links with the fewest of them (G. Detal, 2014, section 5.5.2). It is
// pure and is told the time.
//
// network.go has the network, flow.go the paths of flows through it. schedule.go places flows. move.go moves placed
// flows off links that have become crowded or have gone.
//
// A key names the flows of one request, so that a host that asks again gets the same ways. A way is a path to a
// destination with one back.
package known
