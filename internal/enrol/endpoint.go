package enrol

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/internal/collective"
)

// DefaultPort is the TCP port of coordinators. Sessions between members use the same UDP port.
const DefaultPort = 45672

// maxAddress bounds the characters of host:port: a line has one byte for their number.
const maxAddress = 255

// maxHost bounds the characters of a host, which leaves room for a colon and a port.
const maxHost = maxAddress - len(":65535")

// Endpoint is a server: the name that its certificate must have, and host:port. As text it is name@host:port.
type Endpoint struct {
	Name    string
	Address string
}

func (e Endpoint) String() string { return e.Name + "@" + e.Address }

// ParseEndpoint parses name@host:port. The port may be missing: then it is DefaultPort.
func ParseEndpoint(text string) (Endpoint, error) {
	name, address, ok := strings.Cut(text, "@")
	if !ok {
		return Endpoint{}, fmt.Errorf("the server %.300q: write NAME@HOST:PORT, where NAME is its name as a member", text)
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(strings.Trim(address, "[]"), strconv.Itoa(DefaultPort))
	}
	e := Endpoint{Name: name, Address: address}
	return e, e.Check()
}

// Check returns an error if the name or the address is malformed.
func (e Endpoint) Check() error {
	if err := collective.CheckName(e.Name); err != nil {
		return fmt.Errorf("the server %.300q: %w", e, err)
	}
	host, port, err := net.SplitHostPort(e.Address)
	if err != nil {
		return fmt.Errorf("the server %.300q: %w", e, err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the server %.300q: the port must be a number from 1 to 65535", e)
	}
	if err := CheckHost(host); err != nil {
		return fmt.Errorf("the server %.300q: %w", e, err)
	}
	return nil
}

// CheckHost returns an error if host is neither an IP address nor a domain name (RFC 1123, and underscores, which are in
// use). A name whose last label is a number is a mistyped IPv4 address.
func CheckHost(host string) error {
	if ip, err := netip.ParseAddr(host); err == nil && (ip.Zone() == "" || isLabel(ip.Zone())) {
		return nil
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	last := labels[len(labels)-1]
	switch {
	case host == "":
		return errors.New("the host is missing: name an IP address or a host name")
	case strings.Contains(host, ":"):
		return fmt.Errorf("%.300q is not an IPv6 address (such as 2001:db8::7), and a host name has no colon", host)
	case len(host) > maxHost:
		return fmt.Errorf("the host name %.60q... has %d characters, and may have %d", host, len(host), maxHost)
	case strings.Trim(last, "0123456789") == "":
		return fmt.Errorf("%.300q is not an IPv4 address, which is four numbers from 0 to 255, such as 192.0.2.7", host)
	}
	for _, label := range labels {
		if !isLabel(label) {
			return fmt.Errorf("%.300q is not a host name: its parts must have 1 to 63 characters out of a-z, 0-9, '-' and '_', and may not begin or end with '-'", host)
		}
	}
	return nil
}

func isLabel(s string) bool {
	return s != "" && len(s) <= 63 && s[0] != '-' && s[len(s)-1] != '-' && !strings.ContainsFunc(s, oddInLabel)
}

func oddInLabel(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// MarshalText implements encoding.TextMarshaler.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *Endpoint) UnmarshalText(text []byte) (err error) {
	*e, err = ParseEndpoint(string(text))
	return err
}
