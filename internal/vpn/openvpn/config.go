package openvpn

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
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

// directive is one line of openvpn's configuration.
type directive []string

// common returns the configuration of both ends.
func common(iface string, mtu int, files Files, dir rundir) []directive {
	list := []directive{
		{"dev", iface},
		{"dev-type", "tun"},
		{"topology", "subnet"},
		// The agent sets addresses and routes.
		{"ifconfig-noexec"},
		{"route-noexec"},
		{"persist-tun"},
		{"script-security", "0"},

		{"ca", files.CA},
		{"cert", files.Certificate},
		{"key", files.Key},
		{"tls-version-min", "1.3"},
		{"tls-cert-profile", "preferred"},

		// As in the original system, TLS authenticates the peers and data is not encrypted.
		{"data-ciphers", "none"},
		{"data-ciphers-fallback", "none"},
		{"cipher", "none"},
		{"auth", "none"},
		// OpenVPN treats no cipher as one with small blocks, and would otherwise make new keys
		// every 64 MB.
		{"reneg-bytes", "0"},
		{"allow-compression", "no"},
		{"disable-dco"},

		// TCP learns the segment size from the interface, so no packet needs to be fragmented.
		{"tun-mtu", strconv.Itoa(mtu)},
		{"mssfix", "0"},
		{"mute-replay-warnings"},

		{"management", dir.socket(), "unix"},
		{"management-client"},
		{"management-hold"},
		{"verb", "3"},
		{"machine-readable-output"},
	}
	if files.CRL != "" {
		list = append(list, directive{"crl-verify", files.CRL})
	}
	return list
}

func serverDirectives(c ServerConfig, dir rundir, proto string) []directive {
	return append(common(c.Interface, c.MTU, c.Files, dir),
		directive{"mode", "server"},
		directive{"tls-server"},
		directive{"proto", proto},
		directive{"port", strconv.Itoa(c.Port)},
		directive{"multihome"}, // a host with several addresses answers from the one asked
		directive{"dh", "none"},
		directive{"verify-client-cert", "require"},
		directive{"remote-cert-tls", "client"},
		// The agent decides who may connect, and with which addresses. There are no passwords.
		directive{"management-client-auth"},
		directive{"auth-user-pass-optional"},
		directive{"keepalive", strconv.Itoa(pingEvery), strconv.Itoa(serverPatience / 2)}, // a server waits twice as long
	)
}

func clientDirectives(c ClientConfig, dir rundir, remote netip.AddrPort) []directive {
	proto := "udp4"
	if remote.Addr().Is6() {
		proto = "udp6"
	}
	return append(common(c.Interface, c.MTU, c.Files, dir),
		directive{"tls-client"},
		directive{"remote", remote.Addr().String(), strconv.Itoa(int(remote.Port())), proto},
		directive{"nobind"},
		directive{"remote-cert-tls", "server"},
		directive{"verify-x509-name", c.ServerName, "name"},
		// The server assigns the peer number of our packets. Everything else it pushes (routes,
		// name servers, timers) is ignored.
		directive{"pull"},
		directive{"pull-filter", "accept", "peer-id "},
		directive{"pull-filter", "accept", "cipher none"},
		directive{"pull-filter", "accept", "protocol-flags "},
		directive{"pull-filter", "ignore", ""},
		directive{"tls-timeout", "1"}, // until a handshake's packet is sent again
		directive{"hand-window", strconv.Itoa(clientPatience)},
		directive{"ping", strconv.Itoa(pingEvery)},
		directive{"ping-restart", strconv.Itoa(clientPatience)},
		directive{"connect-retry", "1", "30"},
	)
}

// longestLine is what openvpn reads of a line (OPTION_LINE_SIZE 256, with newline and end).
const longestLine = 254

// render returns the configuration file.
func render(list []directive) (string, error) {
	var b strings.Builder
	for _, d := range list {
		line := d[0]
		for _, word := range d[1:] {
			quoted, err := quote(word)
			if err != nil {
				return "", fmt.Errorf("configure openvpn: %s: %w", d[0], err)
			}
			line += " " + quoted
		}
		if len(line) > longestLine {
			return "", fmt.Errorf("configure openvpn: %s: %q is too long: OpenVPN takes lines of %d bytes; choose a shorter path",
				d[0], strings.Join(d[1:], " "), longestLine)
		}
		b.WriteString(line + "\n")
	}
	return b.String(), nil
}

// quote quotes a word so that openvpn reads it unchanged.
func quote(word string) (string, error) {
	if i := strings.IndexFunc(word, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
		return "", fmt.Errorf("%q has a control character, which OpenVPN cannot read: rename it", word)
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`, nil
}

// absolute makes the paths independent of openvpn's working directory. It also prevents a file name
// "[inline]", which has a special meaning.
func (f Files) absolute() (Files, error) {
	for _, p := range []*string{&f.Certificate, &f.Key, &f.CA, &f.CRL} {
		if *p == "" && p == &f.CRL {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return f, fmt.Errorf("find %s: %w", *p, err)
		}
		*p = abs
	}
	return f, nil
}
