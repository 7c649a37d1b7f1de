// Package nat finds the kind of NAT between a host's UDP port and the Internet, and so how others can
// reach the port: directly, after both ends have sent (hole punching), or not at all.
//
// found.go draws the conclusions and does no I/O. prober.go asks other members for the external
// address of this host, and answers their questions, with STUN packets on the sessions' own UDP port.
// So the result applies to the port in use, and no server outside the collective is needed. punch.go
// decides which packets open a way between two ends. Package stun encodes the packets, and portmap asks
// routers to open ports.
package nat
