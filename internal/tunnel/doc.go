// Package tunnel maintains the detours that lead to any server: in-band admission, WireGuard tunnels and OpenVPN
// tunnels. All three work in the same way. The client sends a request over its session, and the waypoint grants a
// lease. Then the client sets up its end, and asks again before the lease is over.
//
//	client
//	keeper.go                               Keeper: the loop for one kind and one waypoint
//	inband.go wireguard.go openvpn.go       the client's end of each kind
//	route.go                                addresses and routes into a tunnel
//	guard.go                                protection from the other end, of waypoints, too
//	waypoint
//	giver.go giver_tend.go                  Giver: grants tunnels of one kind; its loop
//	give_wireguard.go give_openvpn.go       the waypoint's end of each kind
//	host.go                                 what a Giver changes on the host
//
// In-band detours need no Giver, because package waypoint grants them itself.
package tunnel
