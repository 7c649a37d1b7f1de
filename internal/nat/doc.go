// Package nat finds out what stands between a host's UDP port and the Internet, and what that leaves: a
// port that everybody reaches, one that is reached after both ends have sent (a punched hole), or none.
//
// found.go draws the conclusions and does no I/O. prober.go asks other members where they see this host,
// and answers their questions, with STUN packets at the sessions' own UDP port, so that what is found is
// true of the port that is in use; no server outside the collective is needed. punch.go decides who sends
// what to open a way between two ends. Below, stun has the packets, and portmap has routers open ports.
//
// It knows nothing of waypoints, and imports nothing of ours but what is below itself; agent composes it.
package nat
