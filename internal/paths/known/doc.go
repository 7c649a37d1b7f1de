// Package known computes the paths of flows through a network of CFLB routers whose graph and constants are known. It
// places large flows on the links with the fewest of them (G. Detal, 2014, section 5.5.2). It is pure and is told the
// time.
//
//	network.go     the network: links, and next hops towards a destination
//	flow.go        the paths of flows through it
//	schedule.go    placing new flows
//	move.go        moving placed flows off links that have become crowded or do not exist any more
//
// Words: a way is a path to a destination and one back. A key names the flows of one request. A host that asks again
// under the same key gets the same ways.
package known
