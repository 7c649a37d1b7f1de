// Package config reads the agent's configuration file: a typed struct, parsed strictly and checked as a whole. All
// defaults are in one place. It accesses nothing but the file.
//
// # Where to find what
//
//	config.go client.go waypoint.go   the struct, by role
//	policy.go transport.go            policies, congestion controls and TCP options
//	load.go                           parsing, and the defaults
//	check*.go                         whether the values make sense, alone and together
//	settings.go                       keys as text, differences, and which a running agent takes over
//	edit.go                           changing one key in the file
//	sample.toml                       a sample with a comment on every key
package config

import (
	_ "embed"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/detour-collective/dcol/internal/units"
)

// DefaultPath is the path of the configuration unless another is given.
const DefaultPath = "/etc/dcol/dcol.toml"

const (
	// DefaultRunDir is the agent's run directory.
	DefaultRunDir   = "/run/dcol"
	defaultStateDir = "/var/lib/dcol"
	socketName      = "agent.sock"

	// DefaultSocket is the path of the agent's socket in DefaultRunDir.
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

// Router has the constants by which routers and sources of a network choose paths by ports. All of them must have the
// same.
type Router struct {
	Radix      int    `toml:"radix"` // at least the next hops of any route
	Cipher     string `toml:"cipher"`
	SecretFile string `toml:"secret_file"`
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
	// Converter is not a detour, but a waypoint offers it like one: it connects members to servers without MPTCP.
	Converter Kind = "converter"
)

// kinds lists all kinds of detours. Those that are ready at once for any server come first.
var kinds = []Kind{WireGuard, OpenVPN, InBand, Mapped}

// Has reports whether the member has the role.
func (c *Config) Has(r Role) bool { return slices.Contains(c.Roles, r) }

// CollectiveDir returns the folder for the data of the joined collective.
func (c *Config) CollectiveDir() string { return filepath.Join(c.StateDir, "collective") }

// Socket returns the path of the agent's socket.
func (c *Config) Socket() string { return filepath.Join(c.RunDir, socketName) }

// label matches a name in certificates: one DNS label.
var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
