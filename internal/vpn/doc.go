// Package vpn contains what tunnels of all kinds share: the choice of the addresses that a waypoint
// gives its members (pool.go, subnets.go), and the check of these addresses by a client
// (accept.go). It only decides. Packages wireguard and openvpn make the tunnels, and netstate puts
// the addresses on interfaces.
package vpn
