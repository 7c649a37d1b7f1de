package policy

// Kind is the mechanism by which a detour reaches a server.
type Kind uint8

// The order of the kinds is the order of preference of the DCol paper (section IV). Kinds that are ready at once and
// reach any server come first.
const (
	WireGuard Kind = iota // subflow to the server itself, from a tunnel's address
	OpenVPN               // the same
	InBand                // subflow to the waypoint; the SYN carries the server's address
	Mapped                // subflow to a port of the waypoint that is forwarded to one server
	nKinds
)

// Detours of these kinds lead through no waypoint. Only the policy of a Rule uses them.
const (
	Uplink Kind = nKinds + iota // subflow to the server itself, from another of this host's addresses
	Port                        // the same from the connection's own address, from another port
	nAllKinds
)

// Own reports whether the detour stays on this host's own routes, through no waypoint.
func (k Kind) Own() bool { return k >= nKinds }

var kindWords = [nAllKinds]string{"wireguard", "openvpn", "in-band", "mapped", "uplink", "port"}

func (k Kind) String() string {
	if k >= nAllKinds {
		return "unknown"
	}
	return kindWords[k]
}

// Kinds returns all kinds of detours through waypoints, the preferred first.
func Kinds() []Kind { return []Kind{WireGuard, OpenVPN, InBand, Mapped} }

// ParseKind returns the kind whose String is word.
func ParseKind(word string) (Kind, bool) {
	for k, w := range kindWords {
		if w == word {
			return Kind(k), true
		}
	}
	return 0, false
}
