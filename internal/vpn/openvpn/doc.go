// Package openvpn runs Debian's OpenVPN as one end of a tunnel between two members: it writes the
// configuration, starts and watches the process, and takes it down. As in the original system the
// transport is UDP, both sides show certificates of the collective's authority, and data packets
// are neither encrypted nor signed, so a packet costs 36 bytes over IPv4 (see Overhead).
//
// What is not signed can be forged. OpenVPN takes a data packet from any address for that of the
// client whose small number it carries, and from then on answers to that address: any stranger
// could use a member's tunnel in its name. So a Server keeps a guard in nftables (guard.go): data
// packets come in only from the address and port that made the TLS handshake. Whoever can send
// with a forged source address, or sits on the path, can still put packets into a tunnel; answers
// go to the member alone. Programs must protect their own data, as everywhere on the Internet.
//
// The files in the order in which they matter: find.go (is it installed), config.go (what it is
// told), process.go (one run of it), daemon.go (run after run), management.go and notices.go (what
// it says), server.go and client.go (what that means).
//
// OpenVPN here touches no addresses and no routes: the interface is made by this package, and who
// imports it gives the interface its addresses. A client's is best set up when it is Connected:
// OpenVPN attaches to it only then, and the kernel takes up to a second to see that an interface
// which is up has come to life (net/core/link_watch.c), dropping what is sent by it until then. Everything happens in the network namespace of the
// thread that calls StartServer or StartClient. It knows nothing of waypoints. It imports netstate
// of ours; tunnel and agent may import it.
package openvpn
