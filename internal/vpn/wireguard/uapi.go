package wireguard

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// The embedded WireGuard is configured by lines of KEY=VALUE
// (https://www.wireguard.com/xplatform/#configuration-protocol).

func uapiDevice(private [32]byte, port int) string {
	return fmt.Sprintf("private_key=%x\nlisten_port=%d\n", private, port)
}

func uapiRemove(key [32]byte) string {
	return fmt.Sprintf("public_key=%x\nremove=true\n", key)
}

func (c change) uapi() string {
	var b strings.Builder
	fmt.Fprintf(&b, "public_key=%x\n", c.PublicKey)
	if c.move {
		// Turning it off and on again sends a keepalive to the new endpoint at once.
		fmt.Fprintf(&b, "endpoint=%v\npersistent_keepalive_interval=0\n", c.Endpoint)
	}
	fmt.Fprintf(&b, "persistent_keepalive_interval=%d\n", c.Keepalive/time.Second)
	if c.replaceAllowed {
		b.WriteString("replace_allowed_ips=true\n")
	}
	for _, p := range c.Allowed {
		fmt.Fprintf(&b, "allowed_ip=%v\n", p)
	}
	return b.String()
}

// uapiState is the state reported by the embedded WireGuard.
type uapiState struct {
	port  int
	peers []PeerState
}

func parseUAPI(text string) (uapiState, error) {
	var s uapiState
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok {
			return uapiState{}, fmt.Errorf("line %q from the embedded WireGuard has no value", line)
		}
		if err := s.take(key, value); err != nil {
			return uapiState{}, fmt.Errorf("line %s from the embedded WireGuard: %w", key, err)
		}
	}
	return s, nil
}

func (s *uapiState) take(key, value string) error {
	switch key {
	case "listen_port":
		port, err := strconv.ParseUint(value, 10, 16)
		s.port = int(port)
		return err
	case "public_key":
		var p PeerState
		err := parseKey(&p.PublicKey, value)
		s.peers = append(s.peers, p)
		return err
	}
	if len(s.peers) == 0 {
		return nil // a field of the device
	}
	return s.peers[len(s.peers)-1].take(key, value)
}

func (s *PeerState) take(key, value string) (err error) {
	switch key {
	case "endpoint":
		s.Endpoint, err = netip.ParseAddrPort(value)
	case "allowed_ip":
		var p netip.Prefix
		p, err = netip.ParsePrefix(value)
		s.Allowed = append(s.Allowed, p)
	case "rx_bytes":
		s.Received, err = strconv.ParseUint(value, 10, 64)
	case "tx_bytes":
		s.Sent, err = strconv.ParseUint(value, 10, 64)
	case "persistent_keepalive_interval":
		var seconds uint64
		seconds, err = strconv.ParseUint(value, 10, 16)
		s.Keepalive = time.Duration(seconds) * time.Second
	case "last_handshake_time_sec":
		s.LastHandshake, err = plusTime(s.LastHandshake, value, time.Second)
	case "last_handshake_time_nsec":
		s.LastHandshake, err = plusTime(s.LastHandshake, value, time.Nanosecond)
	}
	return err
}

// plusTime adds a part to a time since the epoch. All parts zero mean no time.
func plusTime(t time.Time, value string, unit time.Duration) (time.Time, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n == 0 {
		return t, err
	}
	if t.IsZero() {
		t = time.Unix(0, 0)
	}
	if unit == time.Second {
		return t.Add(time.Unix(n, 0).Sub(time.Unix(0, 0))), nil
	}
	return t.Add(time.Duration(n) * unit), nil
}

func parseKey(key *[32]byte, value string) error {
	b, err := hex.DecodeString(value)
	if err != nil || len(b) != len(key) {
		return fmt.Errorf("a key has %d characters, but must have %d hexadecimal digits", len(value), 2*len(key))
	}
	*key = [32]byte(b)
	return nil
}
