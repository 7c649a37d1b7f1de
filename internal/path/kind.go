package path

// Kind is how a detour leads to the server.
type Kind uint8

// The kinds in the order of preference of the DCol paper (section IV): what is
// ready at once and works for any server comes first.
const (
	WireGuard Kind = iota // subflow to the server itself, from a tunnel's address
	OpenVPN               // the same
	InBand                // subflow to the waypoint; the SYN carries the server's address
	Mapped                // subflow to a port of the waypoint that leads to one server
	nKinds
)

var kindWords = [nKinds]string{"wireguard", "openvpn", "in-band", "mapped"}

func (k Kind) String() string {
	if k >= nKinds {
		return "unknown"
	}
	return kindWords[k]
}

// Kinds returns all kinds, the preferred first.
func Kinds() []Kind { return []Kind{WireGuard, OpenVPN, InBand, Mapped} }

// ParseKind is the inverse of String.
func ParseKind(word string) (Kind, bool) {
	for k, w := range kindWords {
		if w == word {
			return Kind(k), true
		}
	}
	return 0, false
}
