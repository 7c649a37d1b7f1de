// Package config reads the agent's configuration file: a typed struct, parsed strictly and checked
// as a whole, with every default in one place. It accesses nothing but the file.
package config

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/tomlfile"
	"github.com/detour-collective/dcol/internal/units"
)

// DefaultPath is where the agent looks for its configuration.
const DefaultPath = "/etc/dcol/dcol.toml"

const (
	// DefaultRunDir is the agent's run directory.
	DefaultRunDir   = "/run/dcol"
	defaultStateDir = "/var/lib/dcol"
	socketName      = "agent.sock"

	// DefaultSocket is where commands look for the agent.
	DefaultSocket = DefaultRunDir + "/" + socketName
)

// Sample is a valid configuration file with a comment on every key.
//
//go:embed sample.toml
var Sample string

// Role is a function of a member.
type Role string

const (
	RoleClient   Role = "client"
	RoleWaypoint Role = "waypoint"
	// RoleCoordinator is the role of a host on which `dcol init` was run.
	RoleCoordinator Role = "coordinator"
	// RoleRouter is the role of a host that forwards packets and chooses among equal next hops by ports.
	RoleRouter Role = "router"
)

// Config holds the whole file, including defaults.
type Config struct {
	Name     string `toml:"name"`
	Roles    []Role `toml:"roles"`
	LogLevel string `toml:"log_level"`
	RunDir   string `toml:"run_dir"`
	StateDir string `toml:"state_dir"`
	// Operators is the group that may look and steer without root; empty: none.
	Operators string   `toml:"operators"`
	Identity  Identity `toml:"identity"`
	Session   Session  `toml:"session"`
	Client    Client   `toml:"client"`
	Waypoint  Waypoint `toml:"waypoint"`
	// TunnelRanges are the blocks for addresses in tunnels, at most one of each family. A waypoint
	// gives addresses from them, and a client accepts no others.
	TunnelRanges []netip.Prefix `toml:"tunnel_ranges"`

	Metrics Metrics `toml:"metrics"`
	History History `toml:"history"`
	Trace   Trace   `toml:"trace"`

	Collective  Collective  `toml:"collective"`
	Coordinator Coordinator `toml:"coordinator"`

	Policies   []Policy     `toml:"policy"`
	Congestion []Congestion `toml:"congestion"`
	Options    Options      `toml:"options"`
	Router     Router       `toml:"router"`
}

// Router has the constants by which routers and sources of a network choose paths by ports. All share them.
type Router struct {
	Radix      int    `toml:"radix"` // at least the next hops of any route
	Cipher     string `toml:"cipher"`
	SecretFile string `toml:"secret_file"`
}

// Options are TCP options by which this host and others ask each other for settings.
type Options struct {
	Networks []netip.Prefix `toml:"networks"` // with which they are exchanged; none: all
	Ask      AskOptions     `toml:"ask"`
	Accept   AcceptOptions  `toml:"accept"`
}

// AskOptions are the options that this host asks of peers. Zero values ask nothing.
type AskOptions struct {
	UserTimeout   units.Duration `toml:"user_timeout"`
	Congestion    string         `toml:"congestion"`
	InitialWindow int            `toml:"initial_window"` // segments
	// AckDelay is in percent of the minimum round trip. AckSegments is how many segments may wait for an ACK.
	AckDelay    int `toml:"ack_delay"`
	AckSegments int `toml:"ack_segments"`
	// Rate bounds each subflow that a peer sends to this host.
	Rate units.Cap `toml:"rate"`
}

// AcceptOptions bound the options that this host grants to peers. Zero values grant nothing.
type AcceptOptions struct {
	UserTimeoutMin units.Duration `toml:"user_timeout_min"`
	UserTimeoutMax units.Duration `toml:"user_timeout_max"`
	Congestion     []string       `toml:"congestion"`
	InitialWindow  int            `toml:"initial_window"` // segments at most
	Trusted        []netip.Prefix `toml:"trusted"`        // may ask for an initial window
	AckDelay       bool           `toml:"ack_delay"`
	RateMin        units.Cap      `toml:"rate_min"` // the lowest that is granted; off: none
}

// Congestion chooses the congestion control of connections of this host. Of several that cover a connection, the
// first of the innermost cgroup decides.
type Congestion struct {
	Use      string         `toml:"use"`      // lia, olia, balia, wvegas, or one of the kernel's
	Cgroup   string         `toml:"cgroup"`   // a folder; empty: all programs
	Ports    []int          `toml:"ports"`    // of servers; none: all
	Networks []netip.Prefix `toml:"networks"` // of peers; none: all
}

// Identity holds the paths of this member's key and the collective's certificates.
type Identity struct {
	Certificate string `toml:"certificate"`
	Key         string `toml:"key"`
	CA          string `toml:"ca"`
	CRL         string `toml:"crl"`
}

// Metrics configures the endpoint for Prometheus.
type Metrics struct {
	Listen string `toml:"listen"` // HOST:PORT over TCP; empty: none
}

// History configures what is kept about the past.
type History struct {
	Keep bool `toml:"keep"`
}

// Trace configures the probes of paths that this host sends by itself or for others.
type Trace struct {
	VantagePoint bool           `toml:"vantage_point"` // other members may have this waypoint trace
	Rate         int            `toml:"rate"`          // packets per second, for all members
	Destinations int            `toml:"destinations_per_day"`
	Hours        []units.Window `toml:"hours"` // empty: always
	Probe        bool           `toml:"probe"` // the agent may probe a path on which it sees trouble
}

// Collective is this host's membership in a collective.
type Collective struct {
	// Coordinators are written NAME@HOST:PORT. Empty if this host joined no collective.
	Coordinators []string     `toml:"coordinators"`
	Waypoints    int          `toml:"waypoints"`
	Addresses    []netip.Addr `toml:"addresses"`
	Region       string       `toml:"region"`
}

// Joined reports whether there are coordinators.
func (c Collective) Joined() bool { return len(c.Coordinators) > 0 }

// Coordinator is the coordinator role.
type Coordinator struct {
	Dir        string   `toml:"dir"`
	Listen     string   `toml:"listen"`
	Addresses  []string `toml:"addresses"` // names or IP addresses, without a port
	BusListen  string   `toml:"bus_listen"`
	BusServers []string `toml:"bus_servers"` // NAME@HOST:PORT; none: the bus is embedded
}

// Session configures the sessions between members.
type Session struct {
	Listen string `toml:"listen"`
}

// Kind is a kind of detour.
type Kind string

const (
	WireGuard Kind = "wireguard"
	OpenVPN   Kind = "openvpn"
	InBand    Kind = "in-band"
	Mapped    Kind = "mapped"
	// Converter is no detour, but a waypoint offers it like one: it connects members to servers without MPTCP.
	Converter Kind = "converter"
)

// kinds lists all kinds in the order of the papers: those that are ready at once for any server
// come first.
var kinds = []Kind{WireGuard, OpenVPN, InBand, Mapped}

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
	// PublishMeasurements has the classes of what was measured of waypoints published in the directory.
	PublishMeasurements bool   `toml:"publish_measurements"`
	Mptcpify            string `toml:"mptcpify"`
	Cgroup              string `toml:"cgroup"` // empty: the root of the hierarchy
	// InactivityTimeout is for connections without subflows. Zero: that of the host.
	InactivityTimeout units.Duration `toml:"inactivity_timeout"`
	Converter         Convert        `toml:"converter"`
	Waypoints         []Peer         `toml:"waypoint"`
}

// Selection is the way in which a client selects detours and uses subflows.
type Selection string

const (
	SelectWorth  Selection = "worth"  // by what they were measured to be worth
	SelectOldest Selection = "oldest" // those offered first, as long as they work
)

// Budget limits the payload that goes through waypoints in a calendar month, both directions together.
type Budget struct {
	Total      units.Quota `toml:"total"`
	Waypoint   units.Quota `toml:"waypoint"`           // through each
	Interfaces []string    `toml:"metered_interfaces"` // those that Metered concerns
	Metered    units.Quota `toml:"metered"`
}

// Convert is the use of other members' converters.
type Convert struct {
	Use            UseConverter   `toml:"use"`
	Exclude        []netip.Prefix `toml:"exclude"`
	ExcludePorts   []int          `toml:"exclude_ports"`
	ExcludeDomains []string       `toml:"exclude_domains"`
	Proxy          string         `toml:"proxy"`   // address of a proxy on this host; empty: none
	Gateway        []string       `toml:"gateway"` // interfaces whose hosts' connections are converted
	KeepIPv6       bool           `toml:"keep_ipv6"`
	FastOpen       bool           `toml:"fast_open"`
	// Tunnel is the kind of tunnel in which converters are reached; empty: in none.
	Tunnel         Kind     `toml:"tunnel"`
	Capture        string   `toml:"capture"` // none, host, or the folder of a cgroup
	ExcludeCgroups []string `toml:"exclude_cgroups"`
	// ExcludePrograms are paths of executables that dcol run starts.
	ExcludePrograms []string `toml:"exclude_programs"`
	// IncomingPort is the TCP port at which this host's relay takes the connections that converters bring, if Incoming names any.
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

// UseConverter selects the servers for which converters are used.
type UseConverter string

const (
	ConvertNever  UseConverter = "never"
	ConvertAuto   UseConverter = "auto"   // those that are known to speak no MPTCP
	ConvertAlways UseConverter = "always" // all but those that are known to speak MPTCP
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
	// Punch is set, by the directory, if the waypoint only lets in packets from addresses that it
	// has sent to.
	Punch bool `toml:"-"`
}

// Equal reports whether p and o are the same waypoint, reached in the same way.
func (p Peer) Equal(o Peer) bool {
	return p.Name == o.Name && p.Port == o.Port && p.Punch == o.Punch && slices.Equal(p.Addresses, o.Addresses)
}

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

// MemberTerms limit what one member may use at the waypoint, within what holds for all.
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

// Uses reports whether the client uses the kind.
func (c Client) Uses(k Kind) bool { return slices.Contains(c.Kinds, k) }

// Has reports whether the member has the role.
func (c *Config) Has(r Role) bool { return slices.Contains(c.Roles, r) }

// CollectiveDir returns the folder for the data of the joined collective.
func (c *Config) CollectiveDir() string { return filepath.Join(c.StateDir, "collective") }

// Socket returns the path of the agent's socket.
func (c *Config) Socket() string { return filepath.Join(c.RunDir, socketName) }

// Load reads the file at path. The error lists every problem with its line.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(path, data)
}

// noFile is the error about a file that does not exist.
func noFile(path string) error {
	return fmt.Errorf("there is no configuration at %s; `dcol agent --sample` prints one to start from: %w", path, fs.ErrNotExist)
}

// LoadOrDefault is like Load, but returns the defaults if there is no such file, because cleaning
// up must work without a configuration.
func LoadOrDefault(path string) (*Config, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return defaults(), nil
	}
	return Load(path)
}

// Parse parses a configuration. name is the file's name in errors.
func Parse(name string, data []byte) (*Config, error) {
	c := defaults()
	p := tomlfile.Decode(name, data, c)
	if p.Err() == nil {
		c.fill()
		c.check(p)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// defaults returns the values of absent keys. A key that is present replaces its default, even with
// an empty list.
func defaults() *Config {
	return &Config{
		LogLevel: "info",
		RunDir:   DefaultRunDir,
		StateDir: defaultStateDir,
		// A part of 10/8 that home routers, clouds and containers seldom use, and a /48 of unique
		// local addresses with "dcol" in ASCII.
		TunnelRanges: prefixes("10.192.0.0/11", "fd64:636f:6c00::/48"),
		History:      History{Keep: true},
		Trace:        Trace{Rate: 20, Destinations: 1000},
		Session:      Session{Listen: ":45672"},
		Client: Client{
			Subflows:  2,
			Kinds:     kinds,
			Selection: SelectWorth,
			Mptcpify:  MptcpifyNone,
			// HTTPS, and the other registered ports of protocols that begin with
			// a TLS handshake.
			TLSPorts: []int{443, 465, 563, 636, 853, 989, 990, 992, 993, 994, 995, 5061, 8443},
			// A waypoint could not reach these for us, and would learn which we use.
			Exclude:   prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
			Converter: Convert{Use: ConvertNever, Capture: CaptureNone, IncomingPort: 5125},

			PublishMeasurements: true,
		},
		Options:     Options{Accept: AcceptOptions{UserTimeoutMin: units.Duration(10 * time.Second)}},
		Collective:  Collective{Waypoints: 4},
		Router:      Router{Radix: 16, Cipher: "speck32", SecretFile: "/etc/dcol/cflb-secret"},
		Coordinator: Coordinator{Dir: "/var/lib/dcol/coordinator", Listen: ":45672", BusListen: ":45673"},
		Waypoint: Waypoint{
			Offers:               []Kind{InBand, Mapped},
			InBandAuthenticator:  true,
			FastPath:             true,
			OpenVPNPort:          1194,
			ConverterPort:        5124, // RFC 8803 names no port
			PortMapping:          true,
			DenyPorts:            []int{25},
			MappingsPerMember:    4096,
			ConnectionsPerMember: 4096,
			TunnelsPerMember:     8,
			ConnectionsPerSecond: 50,
			RequestsPerSecond:    500,
			Marks:                0xff0000ff,
			MappingLifetime:      units.Duration(10 * time.Minute),
			Log:                  "/var/log/dcol/attribution.jsonl",
		},
	}
}

func (c *Config) fill() {
	for i := range c.Client.Waypoints {
		if c.Client.Waypoints[i].Port == 0 {
			c.Client.Waypoints[i].Port = 45672
		}
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// label matches a name in certificates: one DNS label.
var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
