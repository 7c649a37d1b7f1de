// Package vpn is what the tunnels of every kind have in common: which addresses
// a waypoint gives its members (pool.go, subnets.go), and which of them a client
// takes (accept.go). It decides only; packages wireguard and openvpn below it
// make the tunnels, netstate puts the addresses on interfaces. Package tunnel
// imports it.
package vpn
