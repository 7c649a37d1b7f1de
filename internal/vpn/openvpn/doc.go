// Package openvpn runs Debian's OpenVPN as one end of a tunnel between two members. As in the original
// system the transport is UDP, both sides use certificates of the collective's authority, and data
// packets are neither encrypted nor signed, so a packet costs 36 bytes over IPv4 (see Overhead).
//
// Unsigned packets can be forged. OpenVPN accepts a data packet from any address if it carries the
// small number of a client (its peer number), and from then on sends answers to that address. So any
// stranger could use a member's tunnel in its name. From another client's address OpenVPN refuses it, but
// has noted its packet number by then, so that a high one silences the client whose number it carries.
// Therefore a Server keeps a guard in nftables (guard.go): data packets are only accepted from the address
// and port that made the TLS handshake, with the peer number that this client has. An attacker who
// can forge source addresses, or is on the path, can still put packets into a tunnel, but answers
// go to the member only. Programs must protect their own data, as everywhere on the Internet.
//
// The files, in order of importance: config.go (OpenVPN's arguments), client.go and server.go (the two
// ends), management.go (which members the server lets in), daemon.go (restarts), process.go (one run of
// OpenVPN), log.go (what it says), guard.go, tun.go, find.go (is OpenVPN installed).
//
// OpenVPN does not configure addresses or routes here. This package creates the interface, and the
// caller configures it. A client's interface should be brought up only when the client is
// Connected: OpenVPN attaches to it only then. The kernel takes up to a second to notice that an
// interface which is already up has been attached (net/core/link_watch.c), and drops packets sent
// by it until then. Everything happens in the network namespace of the thread that calls
// StartServer or StartClient.
package openvpn
