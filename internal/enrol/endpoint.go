package enrol

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/internal/collective"
)

// DefaultPort is the TCP port of coordinators; the sessions between members have the same one of UDP.
const DefaultPort = 45672

// maxAddress is the most characters of host:port.
const maxAddress = 255

// Endpoint is a server and where it is: the member name that its certificate must have, and host:port. As
// text it is name@host:port.
type Endpoint struct {
	Name    string
	Address string
}

func (e Endpoint) String() string { return e.Name + "@" + e.Address }

// ParseEndpoint reads name@host:port. Without a port it is DefaultPort.
func ParseEndpoint(text string) (Endpoint, error) {
	name, address, ok := strings.Cut(text, "@")
	if !ok {
		return Endpoint{}, fmt.Errorf("the server %.300q: write NAME@HOST:PORT, with the name of the member that it is", text)
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(strings.Trim(address, "[]"), strconv.Itoa(DefaultPort))
	}
	e := Endpoint{Name: name, Address: address}
	return e, e.Check()
}

// Check says what of an endpoint makes no sense.
func (e Endpoint) Check() error {
	if err := collective.CheckName(e.Name); err != nil {
		return fmt.Errorf("the server %.300q: %w", e, err)
	}
	host, port, err := net.SplitHostPort(e.Address)
	if err != nil {
		return fmt.Errorf("the server %.300q: %w", e, err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the server %.300q: the port is none", e)
	}
	if host == "" || len(e.Address) > maxAddress || strings.ContainsFunc(host, oddInHost) {
		return fmt.Errorf("the server %.300q: the host is none", e)
	}
	return nil
}

// oddInHost is what neither a name nor an address of a host has.
func oddInHost(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(".-:_%", r)
}

// MarshalText is String.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText is ParseEndpoint.
func (e *Endpoint) UnmarshalText(text []byte) (err error) {
	*e, err = ParseEndpoint(string(text))
	return err
}
