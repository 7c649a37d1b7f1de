package config

import (
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/units"
)

// Client is the client role.
type Client struct {
	Subflows     int            `toml:"subflows"`
	Kinds        []Kind         `toml:"kinds"` // in order of preference
	Selection    Selection      `toml:"selection"`
	Use          []string       `toml:"use"`
	UseOnly      bool           `toml:"use_only"`
	Avoid        []string       `toml:"avoid"`
	Budget       Budget         `toml:"budget"`
	TLSPorts     []int          `toml:"tls_ports"`
	BulkPorts    []int          `toml:"bulk_ports"`
	MessagePorts []int          `toml:"message_ports"`
	Exclude      []netip.Prefix `toml:"exclude"`
	// PublishMeasurements publishes, in the directory, the classes of this host's measurements of waypoints.
	PublishMeasurements bool   `toml:"publish_measurements"`
	Mptcpify            string `toml:"mptcpify"`
	Cgroup              string `toml:"cgroup"` // empty: the root of the hierarchy
	// InactivityTimeout applies to connections without subflows. Zero: the host's setting.
	InactivityTimeout units.Duration `toml:"inactivity_timeout"`
	Converter         Convert        `toml:"converter"`
	Waypoints         []Peer         `toml:"waypoint"`
}

// Selection is the rule by which a client selects detours and uses subflows.
type Selection string

const (
	SelectWorth  Selection = "worth"  // by their measurements
	SelectOldest Selection = "oldest" // those offered first, as long as they work
)

// Budget limits the payload through waypoints in a calendar month, the sum of both directions.
type Budget struct {
	Total      units.Quota `toml:"total"`
	Waypoint   units.Quota `toml:"waypoint"`           // through each
	Interfaces []string    `toml:"metered_interfaces"` // interfaces to which Metered applies
	Metered    units.Quota `toml:"metered"`
}

// Convert configures the use of other members' converters.
type Convert struct {
	Use            UseConverter   `toml:"use"`
	Exclude        []netip.Prefix `toml:"exclude"`
	ExcludePorts   []int          `toml:"exclude_ports"`
	ExcludeDomains []string       `toml:"exclude_domains"`
	Proxy          string         `toml:"proxy"`   // address of a proxy on this host; empty: none
	Gateway        []string       `toml:"gateway"` // interfaces whose hosts' connections are converted
	KeepIPv6       bool           `toml:"keep_ipv6"`
	FastOpen       bool           `toml:"fast_open"`
	// Tunnel is the kind of tunnel through which converters are reached. Empty: none.
	Tunnel         Kind     `toml:"tunnel"`
	Capture        string   `toml:"capture"` // none, host, or the folder of a cgroup
	ExcludeCgroups []string `toml:"exclude_cgroups"`
	// ExcludePrograms are paths of executables that dcol run starts.
	ExcludePrograms []string `toml:"exclude_programs"`
	// IncomingPort is the TCP port at which this host's relay accepts the connections that converters bring. It is used
	// if Incoming is not empty.
	IncomingPort int        `toml:"incoming_port"`
	Incoming     []Incoming `toml:"incoming"`
}

// Incoming is a port at which a converter takes connections for a service of this host.
type Incoming struct {
	Converter string         `toml:"converter"` // the member
	Port      int            `toml:"port"`      // of the converter
	To        netip.AddrPort `toml:"to"`        // the service
}

// IncomingConverters returns the members whose converters take connections for this host.
func (c Convert) IncomingConverters() []string {
	var names []string
	for _, x := range c.Incoming {
		names = append(names, x.Converter)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// UseConverter is the choice of servers that are reached through converters.
type UseConverter string

const (
	ConvertNever  UseConverter = "never"
	ConvertAuto   UseConverter = "auto"   // servers that are known not to speak MPTCP
	ConvertAlways UseConverter = "always" // all servers except those that are known to speak MPTCP
)

// Values of Client.Mptcpify other than a cgroup's folder.
const (
	MptcpifyNone = "none"
	MptcpifyHost = "host"
)

// Values of Convert.Capture other than a cgroup's folder.
const (
	CaptureNone = "none"
	CaptureHost = "host"
)

// Peer is a waypoint that a client may use.
type Peer struct {
	Name      string       `toml:"name"`
	Addresses []netip.Addr `toml:"addresses"`
	Port      int          `toml:"port"`
	// Punch is set by the directory if the waypoint only accepts packets from addresses to which it has sent.
	Punch bool `toml:"-"`
}

// Equal reports whether p and o are the same waypoint and are reached in the same way.
func (p Peer) Equal(o Peer) bool {
	return p.Name == o.Name && p.Port == o.Port && p.Punch == o.Punch && slices.Equal(p.Addresses, o.Addresses)
}

// Uses reports whether the client uses the kind.
func (c Client) Uses(k Kind) bool { return slices.Contains(c.Kinds, k) }
