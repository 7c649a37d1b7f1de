// Package api is how commands talk to the agent on the same host: a Unix socket
// that speaks HTTP, and JSON that carries its schema's version. The types here
// are the schema; docs/cli.md documents it. It imports nothing of dcol's, so
// that every view (terminal, web, tests) can use it.
package api

import (
	"net/netip"
	"time"
)

// StatusSchema is the version of Status.
const StatusSchema = "dcol.status/1"

// Status is what the agent is doing.
type Status struct {
	Schema  string    `json:"schema"`
	Member  string    `json:"member"`
	Version string    `json:"version"`
	Roles   []string  `json:"roles"`
	Since   time.Time `json:"since"`
	// Problems are what keeps the agent from doing all it should, in words.
	Problems []string `json:"problems"`
	// TakenPorts keep roles from running; Problems has them, too.
	TakenPorts []TakenPort `json:"taken_ports,omitempty"`
	// Client is there when the member has the client role.
	Client *Using `json:"client,omitempty"`
	// Serving is there when the member has the waypoint role.
	Serving *Serving `json:"serving,omitempty"`
	// Collective is there when this host has joined one.
	Collective *Collective `json:"collective,omitempty"`
	// Coordinator is there when the member has the coordinator role.
	Coordinator *Coordinator `json:"coordinator,omitempty"`
}

// Using is the client role: connections, and the waypoints they can use.
type Using struct {
	Connections []Connection `json:"connections"`
	// Plain are the servers of connections that speak plain TCP though the program's socket is an MPTCP one: the
	// server does not speak MPTCP, or something on the way removes it. They take no detours.
	Plain     []netip.AddrPort `json:"plain,omitempty"`
	Waypoints []Waypoint       `json:"waypoints"`
	// Counters since the agent started.
	Counters Counters `json:"counters"`
}

// Counters count since the agent started.
type Counters struct {
	Connections     uint64 `json:"connections"`
	SubflowsAsked   uint64 `json:"subflows_asked"`
	SubflowsUp      uint64 `json:"subflows_up"`
	SubflowsRefused uint64 `json:"subflows_refused"`
	EventsLost      uint64 `json:"events_lost"`
	Resyncs         uint64 `json:"resyncs"`
}

// Connection is one MPTCP connection.
type Connection struct {
	Token  string         `json:"token"` // hexadecimal
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	Since  time.Time      `json:"since"`
	// Note says what it waits for or why it has no detour.
	Note     string    `json:"note,omitempty"`
	Subflows []Subflow `json:"subflows"`
}

// Subflow is one of its subflows.
type Subflow struct {
	Kind     string         `json:"kind"` // direct, wireguard, openvpn, in-band, mapped, unknown
	Waypoint string         `json:"waypoint,omitempty"`
	State    SubflowState   `json:"state"`
	Local    netip.AddrPort `json:"local"`
	Remote   netip.AddrPort `json:"remote"`
	Since    time.Time      `json:"since"`
	// RTT and MinRTT are in milliseconds; rates in bits per second over the last
	// second or so; bytes are payload.
	RTT           float64 `json:"rtt_ms"`
	MinRTT        float64 `json:"min_rtt_ms"`
	SendRate      float64 `json:"send_bps"`
	ReceiveRate   float64 `json:"receive_bps"`
	BytesSent     uint64  `json:"bytes_sent"` // acknowledged by the peer
	BytesReceived uint64  `json:"bytes_received"`
	Retransmitted uint64  `json:"segments_retransmitted"`
	CongWindow    uint32  `json:"cwnd_segments"`
	// Why says why this detour was chosen, when it was.
	Why string `json:"why,omitempty"`
}

// Waypoint is one address of one waypoint.
type Waypoint struct {
	Name  string         `json:"name"`
	Addr  netip.AddrPort `json:"address"`
	State WaypointState  `json:"state"`
	Since time.Time      `json:"since"`
	// Why says why it is not used; empty when it is.
	Why      string  `json:"why,omitempty"`
	RTT      float64 `json:"rtt_ms"`
	Loss     float64 `json:"loss"` // of the session's own packets, 0..1
	Mappings int     `json:"mappings"`
	Subflows int     `json:"subflows"`
	// Kinds are the kinds of detours, in the client's order of preference.
	Kinds []WaypointKind `json:"kinds"`
}

// WaypointKind is how one kind of detour stands at one address of a waypoint.
type WaypointKind struct {
	Kind  string    `json:"kind"`
	State KindState `json:"state"`
	// Why it is not ready, or, where it is, what keeps it from some servers.
	Why string `json:"why,omitempty"`
}

// Serving is the waypoint role: what this member does for others.
type Serving struct {
	Listen   string         `json:"listen"`
	Sessions int            `json:"sessions"`
	Mappings int            `json:"mappings"`
	Granted  uint64         `json:"granted"`
	Refused  map[string]int `json:"refused"` // by code
	Offers   []string       `json:"offers"`  // kinds of detours
	InBand   *InBand        `json:"in_band,omitempty"`
	// FastFlows is how many of the members' connections pass by netfilter; nil where none may.
	FastFlows *int     `json:"fast_flows,omitempty"`
	Members   []Served `json:"members"`
	Given     Given    `json:"given"`
	// Outside is how it is reached from outside its own network.
	Outside *Outside `json:"outside,omitempty"`
}

// Outside is how others reach the sessions' port of a waypoint over IPv4.
type Outside struct {
	Address netip.AddrPort `json:"address,omitzero"` // where; none if that is not known
	Leaves  Reachability   `json:"leaves"`
	NAT     string         `json:"nat"` // its kind, in words
	// Why is why Leaves is not-known, and when that is looked at again.
	Why string `json:"why,omitempty"`
	// Asked is how many members were asked where they see this host; Answered, how many told.
	Asked    int `json:"asked"`
	Answered int `json:"answered"`
	// Own is this host's address, Gateway the router that is asked to open ports, if any, Router the protocol
	// that it speaks (PCP, NAT-PMP, UPnP), and Opened what it has opened.
	Own     netip.Addr   `json:"own,omitzero"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
	Router  string       `json:"router,omitempty"`
	Opened  []OpenedPort `json:"opened,omitempty"`
	// Problem is why the router has not opened a port, or why that is of no use; Mend, what to do about it.
	Problem string `json:"problem,omitempty"`
	Mend    string `json:"mend,omitempty"`
}

// OpenedPort is a port that the router leads to this host.
type OpenedPort struct {
	Protocol string         `json:"protocol"`
	Port     uint16         `json:"port"` // at this host
	External netip.AddrPort `json:"external"`
}

// Given is what the operator gives, and how much of it is used.
type Given struct {
	// Open reports whether connections may be opened now. If not, Closed is the cause, and Until the time
	// when that ends; absent: not known.
	Open   bool        `json:"open"`
	Closed ClosedCause `json:"closed,omitempty"`
	Until  time.Time   `json:"until,omitzero"`
	Hours  []string    `json:"hours"` // none: always
	// Where connections may lead, as the configuration says; special-purpose addresses are denied
	// unless they are allowed.
	Allow     []netip.Prefix `json:"allow"`
	Deny      []netip.Prefix `json:"deny"`
	DenyPorts []int          `json:"deny_ports"`
	// Bits per second: of all members together, in each direction, and of one, in both; 0: no limit.
	Bandwidth          int64 `json:"bandwidth_bps"`
	BandwidthPerMember int64 `json:"bandwidth_per_member_bps"`
	// Of the quota, if there is one: it is used up in the course of a month, and begins anew.
	QuotaBytes uint64    `json:"quota_bytes,omitempty"`
	UsedBytes  uint64    `json:"used_bytes,omitempty"`
	Renews     time.Time `json:"renews,omitzero"`
}

// SwitchRequest switches the waypoint on or off.
type SwitchRequest struct {
	On bool `json:"on"`
	// OffSeconds is for how long it is to be off; 0: until it is switched on.
	OffSeconds float64 `json:"off_s,omitempty"`
}

// InBand is what a waypoint did with SYNs that name a server.
type InBand struct {
	// Authenticated: a source address is not enough.
	Authenticated bool `json:"authenticated"`
	Addresses     int  `json:"addresses"` // from which they are taken now
	// SYNs that were passed on, and that were not, by reason. Not known when source
	// addresses are enough.
	Accepted         uint64 `json:"accepted"`
	UnknownAddress   uint64 `json:"unknown_address"`
	BadAuthenticator uint64 `json:"bad_authenticator"`
	Replayed         uint64 `json:"replayed"`
	Malformed        uint64 `json:"malformed"`
}

// Served is what one member uses of this waypoint.
type Served struct {
	Member   string `json:"member"`
	Sessions int    `json:"sessions"`
	Mappings int    `json:"mappings"`
	Tunnels  int    `json:"tunnels"` // WireGuard's and OpenVPN's, whose client has a session
	Flows    int    `json:"flows"`
	Bytes    uint64 `json:"bytes"`
}

// MapRequest asks the agent for a mapping: a port of the waypoint that leads to
// the server.
type MapRequest struct {
	Server   netip.AddrPort `json:"server"`
	Waypoint string         `json:"waypoint"`
}

// MapAnswer is where to connect.
type MapAnswer struct {
	Address      netip.AddrPort `json:"address"`
	LeaseSeconds float64        `json:"lease_seconds"`
}

// Failure is the body of an answer that is not 200.
type Failure struct {
	Message string `json:"error"`
}
