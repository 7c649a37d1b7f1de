// Package wireguard creates WireGuard interfaces: with the kernel's WireGuard if there is one,
// otherwise with the embedded one over TUN. Both behave the same.
//
// Interface and UDP socket are created in the network namespace of the thread that opens a device.
// Peers are identified by their keys only. netstate puts addresses and routes on the interface.
package wireguard
