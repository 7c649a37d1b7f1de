package config

import (
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/units"
)

// Waypoint is the waypoint role.
type Waypoint struct {
	Offers               []Kind         `toml:"offers"`
	InBandAuthenticator  bool           `toml:"in_band_authenticator"`
	FastPath             bool           `toml:"fast_path"`
	OpenVPNPort          int            `toml:"openvpn_port"`
	ConverterPort        int            `toml:"converter_port"`
	ConverterFastOpen    bool           `toml:"converter_fast_open"`
	ConverterIncoming    []units.Ports  `toml:"converter_incoming"` // ports at which members may have connections taken; empty: none
	PortMapping          bool           `toml:"port_mapping"`
	Allow                []netip.Prefix `toml:"allow"`
	Deny                 []netip.Prefix `toml:"deny"`
	DenyPorts            []int          `toml:"deny_ports"`
	MappingsPerMember    int            `toml:"mappings_per_member"`
	ConnectionsPerMember int            `toml:"connections_per_member"`
	TunnelsPerMember     int            `toml:"tunnels_per_member"`
	ConnectionsPerSecond int            `toml:"connections_per_second"`
	RequestsPerSecond    int            `toml:"requests_per_second"`
	BandwidthPerMember   units.Rate     `toml:"bandwidth_per_member"`
	Bandwidth            units.Rate     `toml:"bandwidth"`
	MonthlyQuota         units.Quota    `toml:"monthly_quota"`
	Hours                []units.Window `toml:"hours"` // empty: always
	MappingLifetime      units.Duration `toml:"mapping_lifetime"`
	Marks                uint32         `toml:"marks"`
	Log                  string         `toml:"log"`
	Members              []MemberTerms  `toml:"member"`
}

// MemberTerms limits what one member may use at the waypoint. The limits for all members apply, too.
type MemberTerms struct {
	Name         string         `toml:"name"`
	Only         []netip.Prefix `toml:"only"` // servers; empty: all
	Deny         []netip.Prefix `toml:"deny"`
	Ports        []int          `toml:"ports"` // servers' ports; empty: all
	Hours        []units.Window `toml:"hours"` // empty: always
	MonthlyQuota units.Quota    `toml:"monthly_quota"`
}

// Gives reports whether the waypoint offers the kind.
func (w Waypoint) Gives(k Kind) bool { return slices.Contains(w.Offers, k) }
