package wire

import "fmt"

// Kind is a kind of detour that a waypoint offers, or another service that is requested in the same way.
type Kind uint16

// The kinds. Numbers are never reused.
const (
	Mapped    Kind = 1 // a port of the waypoint that is forwarded to one server
	InBand    Kind = 2 // each SYN carries its server's address in a TCP option
	WireGuard Kind = 3
	OpenVPN   Kind = 4
	Converter Kind = 5 // not a detour: connections to servers without MPTCP (RFC 8803)
)

var kinds = map[Kind]string{Mapped: "mapped", InBand: "in-band", WireGuard: "wireguard", OpenVPN: "openvpn", Converter: "converter"}

func (k Kind) String() string {
	if word, ok := kinds[k]; ok {
		return word
	}
	return fmt.Sprintf("kind %d", uint16(k))
}

// ParseKind returns the kind whose String is word.
func ParseKind(word string) (Kind, bool) {
	for k, w := range kinds {
		if w == word {
			return k, true
		}
	}
	return 0, false
}
