package wire

import "fmt"

// Kind is a kind of detour that a waypoint offers.
type Kind uint16

// The kinds. Numbers are never used again for something else.
const (
	Mapped    Kind = 1 // a port of the waypoint that leads to one server
	InBand    Kind = 2 // each SYN says which server it is for, in a TCP option
	WireGuard Kind = 3
	OpenVPN   Kind = 4
)

var kinds = map[Kind]string{Mapped: "mapped", InBand: "in-band", WireGuard: "wireguard", OpenVPN: "openvpn"}

func (k Kind) String() string {
	if word, ok := kinds[k]; ok {
		return word
	}
	return fmt.Sprintf("kind %d", uint16(k))
}

// ParseKind is the kind that String gives this word.
func ParseKind(word string) (Kind, bool) {
	for k, w := range kinds {
		if w == word {
			return k, true
		}
	}
	return 0, false
}
