// Package wireguard makes WireGuard interfaces: with the kernel's WireGuard where it has one, else
// with the embedded one over TUN. Both are the same to those who use them.
//
// It makes interface and UDP socket in the network namespace of the thread that opens a device, and
// knows peers by their keys only; netstate puts addresses and routes on the interface. Package
// tunnel and the health checks import it.
package wireguard
