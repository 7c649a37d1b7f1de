package relay

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/server"
)

// State describes all that a relay has to do. It replaces the previous State.
type State struct {
	Serve *Serve `json:"serve,omitempty"` // nil: this host is no converter
	Use   *Use   `json:"use,omitempty"`   // nil: this host uses no converters
	// Receive is nil if no converter takes connections for this host.
	Receive *Receive `json:"receive,omitempty"`
}

// Empty reports whether the relay has nothing to do.
func (s State) Empty() bool { return s.Serve == nil && s.Use == nil && s.Receive == nil }

// Serve is a converter for members.
type Serve struct {
	Port uint16     `json:"port"`
	Key  cookie.Key `json:"key"`
	// FastOpen makes the converter accept messages in SYNs.
	FastOpen bool `json:"fast_open,omitempty"`
	// Servers are the servers that the configuration lets members use; nil: all. The waypoint's nftables rules restrict
	// members further, but may be missing.
	Servers *Servers `json:"servers,omitempty"`
	// Incoming are the ports at which connections are taken for members that listen. It is nil while the agent does not
	// know them yet; those of the previous State then stay.
	Incoming []Incoming `json:"incoming"`
}

// Incoming is a port of this host at which connections are taken for a member.
type Incoming struct {
	Port   uint16       `json:"port"`
	Member string       `json:"member"`
	Mark   uint32       `json:"mark"` // of the connections to the member
	Ways   []server.Way `json:"ways"` // to the member, in the order in which they are tried
	// Expelled ends the member's connections at the port, and no more are taken.
	Expelled bool `json:"expelled,omitempty"`
}

// Receive describes services of this host that others reach by calling a converter.
type Receive struct {
	Port     uint16     `json:"port"` // at which converters bring the connections
	Key      cookie.Key `json:"key"`  // of the cookies that converters have
	Services []Service  `json:"services"`
}

// Service is a service of this host, or of its LAN.
type Service struct {
	Number uint32         `json:"number"` // the mark in its cookies; not 0
	To     netip.AddrPort `json:"to"`
}

// Servers are an operator's lists, in the form of egress.New.
type Servers struct {
	Allow     []netip.Prefix `json:"allow,omitempty"`
	Deny      []netip.Prefix `json:"deny,omitempty"`
	DenyPorts []uint16       `json:"deny_ports,omitempty"`
}

// Use describes how this host uses other members' converters.
type Use struct {
	Mode         choice.Mode    `json:"mode"`
	Exclude      []netip.Prefix `json:"exclude,omitempty"`
	ExcludePorts []uint16       `json:"exclude_ports,omitempty"`
	// ExcludeDomains are excluded with all names below them. The proxy knows a server's name. Elsewhere, the addresses
	// in DNS answers count.
	ExcludeDomains []string `json:"exclude_domains,omitempty"`
	// ExcludePrograms are paths of executables whose connections go directly. It concerns programs that ask, such as
	// those of dcol run.
	ExcludePrograms []string    `json:"exclude_programs,omitempty"`
	Proxy           string      `json:"proxy,omitempty"`          // where to listen as a SOCKS5 and HTTP CONNECT proxy; empty: nowhere
	Gateway         []string    `json:"gateway,omitempty"`        // interfaces of LANs whose connections come in by TPROXY
	UnreachedMark   uint32      `json:"unreached_mark,omitempty"` // of LANs' connections that end because their server was not reached
	KeepIPv6        bool        `json:"keep_ipv6,omitempty"`      // their direct connections come from their own IPv6 addresses
	FastOpen        bool        `json:"fast_open,omitempty"`      // messages to converters go in the SYN where that works
	Capture         *Capture    `json:"capture,omitempty"`        // nil: only programs that ask, such as those of dcol run
	Converters      []Converter `json:"converters,omitempty"`     // the nearest first
	// TunnelMark is the mark (SO_MARK) of sockets that call converters through tunnels. If it is not 0, each converter
	// is called from its From only.
	TunnelMark uint32 `json:"tunnel_mark,omitempty"`
}

// Capture leads connections of this host's programs to the relay even if the programs do not ask, while there is an
// agent. Without an agent, connections to a converter would get no detours.
type Capture struct {
	Cgroup  string   `json:"cgroup,omitempty"`  // a folder of cgroup v2 with the programs; empty: all programs
	Exclude []string `json:"exclude,omitempty"` // cgroups whose programs are left alone
	Agent   uint32   `json:"agent"`             // the agent's process, by connect.ProcessID
}

// Converter is a converter to which this host is admitted.
type Converter struct {
	Name   string         `json:"name"` // of the member
	At     netip.AddrPort `json:"at"`
	Cookie []byte         `json:"cookie"`
	RTT    time.Duration  `json:"rtt"` // 0: unknown
	// From is this host's address in a tunnel to the converter's host. Cookie is valid only from there. If From is
	// zero, the converter is called like any server.
	From netip.Addr `json:"from,omitzero"`
}

// CompareConverters orders converters by their round-trip times. Those with an unknown time come last.
func CompareConverters(a, b Converter) int {
	known := func(c Converter) time.Duration {
		if c.RTT == 0 {
			return math.MaxInt64
		}
		return c.RTT
	}
	return cmp.Or(cmp.Compare(known(a), known(b)), a.At.Compare(b.At))
}

// Status describes what a relay does now.
type Status struct {
	Version string           `json:"version"`
	PID     int              `json:"pid"`
	Parts   map[string]*Part `json:"parts"` // by the name of the part
	// Capture is the reason why programs' connections do not come to the relay, if they should. It is empty if they do.
	Capture string `json:"capture,omitempty"`
	// Aside are the converters that are not used for a while, because they do not work.
	Aside map[netip.AddrPort]choice.Aside `json:"aside,omitempty"`
	// Excluded are addresses that are excluded because of excluded domains, at most excludedShown of ExcludedAll.
	Excluded    []choice.Excluded `json:"excluded,omitempty"`
	ExcludedAll int               `json:"excluded_all,omitempty"`
}

// excludedShown bounds the addresses in a Status.
const excludedShown = 100

// Part describes one way in which connections come in.
type Part struct {
	Listen   string          `json:"listen"`            // the address, with the port that it has
	Problem  string          `json:"problem,omitempty"` // why it does not listen
	Counters engine.Counters `json:"counters"`
}

// Names of the parts.
const (
	PartServe     = "converter"
	PartReceive   = "incoming"
	PartPrograms4 = "programs, IPv4"
	PartPrograms6 = "programs, IPv6"
	PartProxy     = "proxy"
	PartGateway4  = "gateway, IPv4"
	PartGateway6  = "gateway, IPv6"
)

// partIncoming begins the names of parts that take connections for members.
const partIncoming = "incoming at "

// Part returns the name of the part. It differs for each port and member.
func (x Incoming) Part() string { return fmt.Sprintf("%s%d for %s", partIncoming, x.Port, x.Member) }
