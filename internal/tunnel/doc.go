// Package tunnel maintains the detours that reach any server: in-band admission, WireGuard and
// OpenVPN tunnels. All three follow one pattern: the client asks over its session, the waypoint
// grants for a lease, the client sets up its end and asks again before the lease is over.
//
// On the client, a Keeper (keeper.go) does this for one kind and one waypoint, using an end for
// that kind (inband.go, wireguard.go, openvpn.go). On the waypoint, a Giver (giver.go) hands out
// addresses and uses a far end for its kind (give_wireguard.go, give_openvpn.go). In-band detours
// need no Giver: package waypoint grants them itself.
package tunnel
