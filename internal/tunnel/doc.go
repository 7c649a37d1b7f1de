// Package tunnel keeps and gives the detours that lead to any server: in-band
// admission, WireGuard and OpenVPN tunnels. All three are had in one way: the
// client asks over its session, the waypoint grants for a lease, the client sets
// up its end and asks again before the lease is over.
//
// The client's side: a Keeper (keeper.go) does that for one kind and one
// waypoint, with the end of that kind (inband.go, wireguard.go, openvpn.go). The
// waypoint's side: a Giver (giver.go) hands out addresses and has the end of its
// kind let the member in (give_wireguard.go, give_openvpn.go); in-band needs none,
// package waypoint does it alone.
//
// Only package agent may import it.
package tunnel
