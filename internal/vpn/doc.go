// Package vpn is what the tunnels of every kind have in common: which addresses a
// waypoint gives its members. It decides only; packages wireguard and openvpn below
// it make the tunnels, netstate puts the addresses on interfaces. Package tunnel
// imports it.
package vpn
