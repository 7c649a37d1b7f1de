// Package scenario parses the lab's input: a TOML file that declares a network, its workload, the number of
// runs, and the expectations. It parses strictly and checks everything that can be checked without building a
// network. It changes nothing: lab/experiment builds the network, and lab/report shows the results.
//
// docs/lab.md documents every key, which a test checks.
package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/lab/middlebox"
)

// Schema is the version of the file format this package reads.
const Schema = "dcol.scenario/1"

// Base is the name of the variant without changes: the network as declared.
const Base = "base"

// DirectPath names the path without a waypoint. Other paths have their waypoint's name.
const DirectPath = "direct"

// Scenario is the content of a file, with the defaults filled in.
type Scenario struct {
	Schema      string `toml:"schema"`
	Name        string `toml:"name"`
	Description string `toml:"description"`
	Congestion  string `toml:"congestion_control"`
	Repetitions int    `toml:"repetitions"`
	Seed        int64  `toml:"seed"`
	// Varied names the link whose loss and delay differ between the variants.
	Varied     string        `toml:"varied"`
	Hosts      []Host        `toml:"host"`
	Links      []Link        `toml:"link"`
	Variants   []Variant     `toml:"variant"` // after Parse, includes those of the sweeps
	Sweeps     []Sweep       `toml:"sweep"`
	Workload   Workload      `toml:"workload"`
	Procedures []Procedure   `toml:"procedure"`
	Events     []Event       `toml:"event"`
	Expects    []Expectation `toml:"expect"`
}

// Role is the task of a host.
type Role string

// The roles of hosts. A host may be both client and waypoint.
const (
	RoleClient   Role = "client"
	RoleWaypoint Role = "waypoint"
	RoleServer   Role = "server"
	RoleRouter   Role = "router"
	// RoleConverter connects members to servers without MPTCP. A waypoint may have it too.
	RoleConverter Role = "converter"
	// RoleCoordinator makes all hosts with agents members of a collective.
	RoleCoordinator Role = "coordinator"
)

// Host describes a host of the network.
type Host struct {
	Name  string `toml:"name"`
	Roles []Role `toml:"roles"`
	// Middlebox, NAT and Inside select what a router does to packets: to options of SYNs, and to packets from and to
	// its inside links.
	Middlebox Middlebox `toml:"middlebox"`
	NAT       []string  `toml:"nat"`
	NATKind   NATKind   `toml:"nat_kind"`
	Forwards  []Forward `toml:"forward"`
	// Quotes and ICMP select how a router answers packets whose time to live ends there.
	Quotes middlebox.Quotes `toml:"quotes"`
	ICMP   middlebox.ICMP   `toml:"icmp"`
	// Balance makes a router use all equally cheap routes, and choose among them by a flow's addresses and ports.
	Balance bool `toml:"balance"`
	// Subflows limits a server's subflows besides an MPTCP connection's first. nil means the kernel's
	// default.
	Subflows *int `toml:"mptcp_subflows"`
	// MPTCP, if false, makes the host's kernel refuse MPTCP.
	MPTCP *bool `toml:"mptcp"`
	// LAN lists the links to hosts whose connections this client's agent, as their gateway, leads to converters.
	LAN []string `toml:"lan"`
	// IPv6Only hosts have no IPv4 address.
	IPv6Only bool `toml:"ipv6_only"`
	// Sysctls are kernel parameters of the host, by their names with dots. Values are strings or whole numbers.
	Sysctls map[string]any `toml:"sysctls"`
	// DCol overrides the configuration that the lab writes for this host's agent.
	DCol map[string]any `toml:"dcol"`
}

// Has reports whether the host has the role.
func (h Host) Has(r Role) bool {
	for _, have := range h.Roles {
		if have == r {
			return true
		}
	}
	return false
}

// SysctlValues returns the host's kernel parameters in the form for the kernel.
func (h Host) SysctlValues() map[string]string { return sysctlValues(h.Sysctls) }

func sysctlValues(sysctls map[string]any) map[string]string {
	values := map[string]string{}
	for key, value := range sysctls {
		values[key] = fmt.Sprint(value)
	}
	return values
}

// SysctlsIn returns the kernel parameters of each host in a variant, in the form for the kernel.
func (s *Scenario) SysctlsIn(v Variant) map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, h := range s.Hosts {
		all[h.Name] = h.SysctlValues()
	}
	for _, change := range v.Hosts {
		maps.Copy(all[change.Name], sysctlValues(change.Sysctls))
	}
	return all
}

// MiddleboxesIn returns each host's middlebox in a variant.
func (s *Scenario) MiddleboxesIn(v Variant) map[string]Middlebox {
	all := map[string]Middlebox{}
	for _, h := range s.Hosts {
		all[h.Name] = h.Middlebox
	}
	for _, change := range v.Hosts {
		if change.Middlebox != NoMiddlebox {
			all[change.Name] = change.Middlebox
		}
	}
	return all
}

// RunsAgent reports whether a dcol agent runs on the host.
func (h Host) RunsAgent() bool {
	return h.Has(RoleClient) || h.Serves() || h.Has(RoleCoordinator)
}

// Serves reports whether other members use the host, as a waypoint or a converter.
func (h Host) Serves() bool { return h.Has(RoleWaypoint) || h.Has(RoleConverter) }

// Coordinator returns the name of the host that coordinates a collective, or "" if none does.
func (s *Scenario) Coordinator() string {
	if names := s.WithRole(RoleCoordinator); len(names) > 0 {
		return names[0]
	}
	return ""
}

// Gateway returns the host whose agent leads connections of the workload's client to converters, or "" if none does.
func (s *Scenario) Gateway() string {
	for _, h := range s.Hosts {
		for _, l := range s.Links {
			if slices.Contains(h.LAN, l.Name) && (l.A == s.Workload.Client || l.B == s.Workload.Client) {
				return h.Name
			}
		}
	}
	return ""
}

// ClientAgent returns the host whose agent serves the workload's client. It is the client's gateway, or the client
// itself.
func (s *Scenario) ClientAgent() string { return cmp.Or(s.Gateway(), s.Workload.Client) }

// HasMPTCP reports whether the host's kernel offers MPTCP.
func (h Host) HasMPTCP() bool { return h.MPTCP == nil || *h.MPTCP }

// Link joins two hosts.
type Link struct {
	Name string `toml:"name"`
	A    string `toml:"a"`
	B    string `toml:"b"`
	Cost int    `toml:"cost"`
	MTU  int    `toml:"mtu"`
	// Radio is the radio of a mobile device at an end of the link, or nil.
	Radio *Radio `toml:"radio"`
	Shape
}

// Radio is off until a packet of TCP comes, and then needs the time Wake before it carries anything. After the time
// Sleep without packets it uses less power, and after another Sleep it is off. lab/emulink has the model.
type Radio struct {
	Wake  units.Duration `toml:"wake"`
	Sleep units.Duration `toml:"sleep"`
	Power int            `toml:"power"` // mW, while it wakes up and is on
	Low   int            `toml:"low"`   // mW, before it is off
}

// Change is a link's new shape, in a variant or an event.
type Change struct {
	Link string `toml:"link"`
	Shape
}

// HostChange changes a host's kernel parameters or its middlebox in a variant.
type HostChange struct {
	Name      string         `toml:"name"`
	Sysctls   map[string]any `toml:"sysctls"`
	Middlebox Middlebox      `toml:"middlebox"`
}

// Variant is a named set of changes to the network and the workload as declared.
type Variant struct {
	Name        string         `toml:"name"`
	Description string         `toml:"description"`
	Changes     []Change       `toml:"change"`
	Hosts       []HostChange   `toml:"host"`
	Workload    WorkloadChange `toml:"workload"`
	// Kinds are the kinds of detours, preferred first, of procedures whose detour is DefaultDetour. If empty, agents
	// use their own.
	Kinds []Detour `toml:"kinds"`
	// Coordinates has the position of a sweep's variant on each axis. It is empty for other variants.
	Coordinates []Coordinate
}

// Host returns the host with that name.
func (s *Scenario) Host(name string) (Host, bool) {
	for _, h := range s.Hosts {
		if h.Name == name {
			return h, true
		}
	}
	return Host{}, false
}

// HasRadio reports whether any link has a radio.
func (s *Scenario) HasRadio() bool {
	return slices.ContainsFunc(s.Links, func(l Link) bool { return l.Radio != nil })
}

// Link returns the link with that name.
func (s *Scenario) Link(name string) (Link, bool) {
	for _, l := range s.Links {
		if l.Name == name {
			return l, true
		}
	}
	return Link{}, false
}

// Variant returns the variant with that name. Base always exists.
func (s *Scenario) Variant(name string) (Variant, bool) {
	for _, v := range s.Variants {
		if v.Name == name {
			return v, true
		}
	}
	if name == Base {
		return Variant{Name: Base, Description: "the network as declared"}, true
	}
	return Variant{}, false
}

// VariantNames lists all variants, Base first.
func (s *Scenario) VariantNames() []string {
	names := []string{Base}
	for _, v := range s.Variants {
		names = append(names, v.Name)
	}
	return names
}

// WithRole lists the names of the hosts that have the role.
func (s *Scenario) WithRole(r Role) []string {
	var names []string
	for _, h := range s.Hosts {
		if h.Has(r) {
			names = append(names, h.Name)
		}
	}
	return names
}
