// Package nat examines what stands between a host's UDP port and the Internet, and how others can
// reach the port: directly, after both ends have sent (a punched hole), or not at all.
//
// found.go draws the conclusions and does no I/O. prober.go asks other members where they see this
// host, and answers their questions, with STUN packets on the sessions' own UDP port. So the result
// applies to the port in use, and no server outside the collective is needed. punch.go decides
// which packets open a way between two ends. Package stun encodes the packets, and portmap asks
// routers to open ports.
package nat
