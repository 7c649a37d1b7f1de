package config

import (
	"cmp"
	"net/netip"

	"github.com/detour-collective/dcol/internal/units"
)

// Policy chooses how connections use their paths. If several match a connection, those of the innermost cgroup decide,
// and of these the first.
type Policy struct {
	Use      PolicyName     `toml:"use"`
	Cgroup   string         `toml:"cgroup"`   // a folder; empty: all programs
	Ports    []int          `toml:"ports"`    // of servers; none: all
	Networks []netip.Prefix `toml:"networks"` // of peers; none: all

	Subflows int      `toml:"subflows"` // 0: those of [client], or for fullmesh and backup one for each path
	Uplinks  []string `toml:"uplinks"`  // interfaces, the preferred first; none: all
	Detours  bool     `toml:"detours"`  // besides uplinks or paths
	Server   string   `toml:"server"`   // of paths and detours, NAME@HOST:PORT; empty: the agent finds paths

	// Conditions for opening subflows besides the first. One true condition is enough. If all are zero, they are opened
	// at once.
	AfterBytes units.Size     `toml:"after_bytes"`
	After      units.Duration `toml:"after"`
	Below      units.Rate     `toml:"below"`
	AboveRTT   units.Duration `toml:"above_rtt"`

	Refresh     bool                  `toml:"refresh"`
	RefuseJoins bool                  `toml:"refuse_joins"`
	Announce    bool                  `toml:"announce"` // addresses, to peers of this host's servers
	Quota       map[string]units.Size `toml:"quota"`    // by interface or waypoint
	QuotaEvery  units.Duration        `toml:"quota_every"`

	Limit       map[string]units.Cap `toml:"limit"`        // of each subflow, by interface or waypoint
	NearQuota   units.Cap            `toml:"near_quota"`   // of each subflow, from 80 % of its path's quota on
	UserTimeout units.Duration       `toml:"user_timeout"` // of each subflow; 0: the kernel's

	Traffic Traffic `toml:"traffic"` // of the connections; empty: found from the traffic
}

// PolicyName names a policy.
type PolicyName string

// The policies.
const (
	UseDetours  PolicyName = "detours"    // detours through waypoints, as in [client]
	UseFullMesh PolicyName = "fullmesh"   // all uplinks at once
	UseBackup   PolicyName = "backup"     // one uplink; the others stand by
	UseSingle   PolicyName = "single"     // one uplink; the next is opened when it fails
	UsePorts    PolicyName = "ndiffports" // several subflows on one path
	UsePaths    PolicyName = "paths"      // several paths between two addresses, by ports
)

// Traffic names a kind of traffic.
type Traffic string

// The kinds of traffic.
const (
	Short    Traffic = "short"    // a few round trips: its paths are used as they are
	Bulk     Traffic = "bulk"     // waits for bandwidth
	Messages Traffic = "messages" // wait for round trips
)

// trafficNames lists all kinds of traffic.
var trafficNames = []string{string(Short), string(Bulk), string(Messages)}

// policyNames lists all policies.
var policyNames = []string{string(UseDetours), string(UseFullMesh), string(UseBackup), string(UseSingle), string(UsePorts), string(UsePaths)}

// OfUplinks reports whether the policy uses several uplinks.
func (p *Policy) OfUplinks() bool {
	return p.Use == UseFullMesh || p.Use == UseBackup || p.Use == UseSingle
}

// Restricts reports whether the policy limits the rate of subflows or sets a user timeout.
func (p *Policy) Restricts() bool { return len(p.Limit) > 0 || p.NearQuota.On || p.UserTimeout > 0 }

// Paths returns the number of paths for the policy "paths".
func (p *Policy) Paths() int { return cmp.Or(p.Subflows, 2) }
