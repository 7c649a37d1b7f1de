// Package known computes the paths of flows through a network of CFLB routers whose graph and constants are known, and
// places large flows on the links with the fewest of them (G. Detal, 2014, section 5.5.2). All of it is pure and is told
// the time.
package known
