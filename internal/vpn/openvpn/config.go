package openvpn

import (
	"net/netip"
	"strconv"
)

// Files holds the paths of a member's identity, as in package collective. OpenVPN reads the files
// at each connection, and the revocation list whenever it has changed.
type Files struct {
	Certificate string
	Key         string
	CA          string
	CRL         string // empty: no certificate is revoked
}

// Overhead is the size in bytes of what OpenVPN puts before each packet, besides the UDP and IP
// headers: an opcode with the peer's number, and a packet number. With UDP and IPv4 that makes the
// 36 bytes of the original system.
const Overhead = 8

// MTU returns the MTU of a tunnel to remote whose packets fit a path's MTU.
func MTU(path int, remote netip.Addr) int {
	const udp, ip4, ip6 = 8, 20, 40
	if remote.Unmap().Is4() {
		return path - ip4 - udp - Overhead
	}
	return path - ip6 - udp - Overhead
}

// In seconds. An idle tunnel costs 52 bytes every pingEvery in each direction, and keeps a NAT's
// mapping alive (RFC 4787, REQ-5: at least two minutes; many have 30 s).
const (
	pingEvery      = 3
	clientPatience = 12 // for a packet from the server, and for all of the TLS handshake
	serverPatience = 40 // for a packet from a client
)

// arguments returns openvpn's arguments that are the same at both ends.
func arguments(iface string, mtu int, files Files) []string {
	args := []string{
		"--dev", iface, "--dev-type", "tun", "--topology", "subnet",
		// The agent sets addresses and routes.
		"--ifconfig-noexec", "--route-noexec", "--persist-tun", "--script-security", "0",

		"--ca", files.CA, "--cert", files.Certificate, "--key", files.Key,
		"--tls-version-min", "1.3", "--tls-cert-profile", "preferred",

		// As in the original system, TLS authenticates the peers and data is not encrypted.
		"--data-ciphers", "none", "--data-ciphers-fallback", "none", "--cipher", "none", "--auth", "none",
		// OpenVPN treats no cipher as one with small blocks, and would otherwise make new keys
		// every 64 MB.
		"--reneg-bytes", "0", "--allow-compression", "no", "--disable-dco",

		// TCP learns the segment size from the interface, so no packet needs to be fragmented.
		"--tun-mtu", strconv.Itoa(mtu), "--mssfix", "0", "--mute-replay-warnings",

		"--verb", "3", "--machine-readable-output",
	}
	if files.CRL != "" {
		args = append(args, "--crl-verify", files.CRL)
	}
	return args
}

func serverArguments(c ServerConfig, proto, socket string) []string {
	return append(arguments(c.Interface, c.MTU, c.Files),
		"--mode", "server", "--tls-server", "--proto", proto, "--port", strconv.Itoa(int(c.Port)),
		"--multihome", // a host with several addresses answers from the one asked
		"--dh", "none", "--verify-client-cert", "require", "--remote-cert-tls", "client",
		// The agent decides who may connect, and with which addresses. There are no passwords.
		"--management", socket, "unix", "--management-client", "--management-client-auth", "--auth-user-pass-optional",
		"--keepalive", strconv.Itoa(pingEvery), strconv.Itoa(serverPatience/2), // a server waits twice as long
	)
}

func clientArguments(c ClientConfig, remote netip.AddrPort) []string {
	addr, proto := remote.Addr().Unmap(), "udp6"
	if addr.Is4() {
		proto = "udp4"
	}
	return append(arguments(c.Interface, c.MTU, c.Files),
		"--tls-client", "--remote", addr.String(), strconv.Itoa(int(remote.Port())), proto, "--nobind",
		"--remote-cert-tls", "server", "--verify-x509-name", c.ServerName, "name",
		// The server assigns the peer number of our packets. Everything else it pushes (routes,
		// name servers, timers) is ignored.
		"--pull", "--pull-filter", "accept", "peer-id ", "--pull-filter", "accept", "cipher none",
		"--pull-filter", "accept", "protocol-flags ", "--pull-filter", "ignore", "",
		"--tls-timeout", "1", // until a handshake's packet is sent again
		"--hand-window", strconv.Itoa(clientPatience),
		"--ping", strconv.Itoa(pingEvery), "--ping-restart", strconv.Itoa(clientPatience), "--connect-retry", "1", "30",
	)
}
