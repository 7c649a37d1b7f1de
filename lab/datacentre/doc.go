// Package datacentre simulates data centres packet by packet, in virtual time: FatTree, VL2 and BCube with MPTCP
// connections whose subflows take paths of chance (ECMP) or those of a scheduler (CFLB). It repeats the simulations of
// G. Detal, "Evaluating and Improving the Deployability of Multipath TCP", 2014, section 5.5.2. A seed determines all.
//
// Each hop of a data packet is one event. A queue is first in, first out, and all packets have one size, so a packet's
// time of departure is known when it arrives. Acknowledgements take the time of an idle path and are not queued.
// Connections always have data, so nothing needs to be sent again: a lost packet frees its place in the window.
package datacentre
