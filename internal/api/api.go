// Package api connects commands with the agent on the same host: HTTP over a Unix socket, with JSON that names its
// schema's version. The types here are the schema; docs/cli.md documents it. The package imports nothing else of
// dcol's, so that every view (terminal, web, tests) can use it.
//
// client.go sends requests, server.go answers them, and operators.go decides who may. The other files have the types,
// by topic.
package api

import (
	"net/netip"
	"time"
)

// StatusSchema is the version of Status.
const StatusSchema = "dcol.status/1"

// Status is the agent's status.
type Status struct {
	Schema  string    `json:"schema"`
	Member  string    `json:"member"`
	Version string    `json:"version"`
	Roles   []string  `json:"roles"`
	Since   time.Time `json:"since"`
	// Problems describe, in words, what prevents the agent from working fully.
	Problems []string `json:"problems"`
	// TakenPorts are ports in use that prevent a role from running. Problems has them, too.
	TakenPorts []TakenPort `json:"taken_ports,omitempty"`
	// Client is set if the member has the client role.
	Client *Using `json:"client,omitempty"`
	// Serving is set if the member has the waypoint role.
	Serving *Serving `json:"serving,omitempty"`
	// Relay is set while the process runs that relays converted connections.
	Relay *Relay `json:"relay,omitempty"`
	// Router is set if the member has the router role.
	Router *Router `json:"router,omitempty"`
	// Collective is set if this host has joined a collective.
	Collective *Collective `json:"collective,omitempty"`
	// Coordinator is set if the member has the coordinator role.
	Coordinator *Coordinator `json:"coordinator,omitempty"`
}

// Using describes the client role: connections, and the waypoints they can use.
type Using struct {
	Connections []Connection `json:"connections"`
	// Ended lists connections that ended recently. It is set for package history only.
	Ended []Ended `json:"-"`
	// Plain lists the servers of connections that are plain TCP although the program's socket is MPTCP. The server does
	// not support MPTCP, or something on the path removes it. These connections get no detours.
	Plain     []netip.AddrPort `json:"plain,omitempty"`
	Waypoints []Waypoint       `json:"waypoints"`
	// Direct is the state of the direct path, or nil if it is not known, because no connection used the path lately.
	Direct     *DirectPath `json:"direct,omitempty"`
	Converting Converting  `json:"converting"`
	Steering   Steering    `json:"steering"`
	// Budgets are the operator's limits of the payload through waypoints in a month.
	Budgets []Budget `json:"budgets,omitempty"`
	// Exploring is the cost of trying paths in the current hour: those that were not measured, those that lost much,
	// and those through which nothing arrived.
	Exploring Exploring `json:"exploring"`
	// Sampling is set while more connections are active than can be measured.
	Sampling *Sampling `json:"sampling,omitempty"`
	// Counters since the agent started.
	Counters Counters `json:"counters"`
}

// DirectPath is the state of the direct path.
type DirectPath struct {
	State DirectWord `json:"state"`
	// Since is the time at which something last came over a lost path.
	Since time.Time `json:"since,omitzero"`
	// Connections is the number of connections that go on without a lost path.
	Connections int `json:"connections,omitempty"`
}

// IsLost reports whether nothing comes over the direct path any more. d may be nil.
func (d *DirectPath) IsLost() bool { return d != nil && d.State == DirectLost }

// Works reports whether something came over the direct path lately. d may be nil.
func (d *DirectPath) Works() bool { return d != nil && d.State == DirectUp }

// Ended reports when the connection with a token ended.
type Ended struct {
	Token string // hexadecimal
	At    time.Time
}

// Exploring is the cost of trying paths in an hour, and its limits. When one is reached, nothing is tried until Renews.
type Exploring struct {
	Tries     int       `json:"tries"`
	MostTries int       `json:"most_tries"`
	Bytes     uint64    `json:"bytes"` // of payload, in the first ten seconds of each try
	MostBytes uint64    `json:"most_bytes"`
	Renews    time.Time `json:"renews,omitzero"` // absent: nothing was tried
}

// Sampling counts the active connections with a detour, and those that are measured now. They take turns.
type Sampling struct {
	Active   int `json:"active"`
	Measured int `json:"measured"`
}

// Budget is a limit of payload through waypoints in a calendar month, both directions together, in bytes.
type Budget struct {
	Scope    string    `json:"scope"` // total, waypoint, metered
	Waypoint string    `json:"waypoint,omitempty"`
	Used     uint64    `json:"used_bytes"`
	Limit    uint64    `json:"limit_bytes"`
	Level    string    `json:"level"` // free, nearly (from four fifths on), spent
	Renews   time.Time `json:"renews"`
}

// Counters count since the agent started.
type Counters struct {
	Connections     uint64 `json:"connections"`
	SubflowsAsked   uint64 `json:"subflows_asked"`
	SubflowsUp      uint64 `json:"subflows_up"`
	SubflowsRefused uint64 `json:"subflows_refused"`
	EventsLost      uint64 `json:"events_lost"`
	Resyncs         uint64 `json:"resyncs"`
	// Carried counts payload by path.
	Carried []Carried `json:"carried"`
	// Lifetimes counts ended connections by their duration.
	Lifetimes Histogram `json:"lifetimes"`
}

// Carried counts payload in bytes.
type Carried struct {
	Kind     string `json:"kind"` // direct, wireguard, openvpn, in-band, mapped
	Waypoint string `json:"waypoint,omitempty"`
	Received uint64 `json:"received"`
	Sent     uint64 `json:"sent"` // acknowledged by the peer
}

// Histogram counts durations. It has one more count than bounds; the last count is of durations that exceed all bounds.
type Histogram struct {
	Bounds []float64 `json:"bounds_s"`
	Counts []uint64  `json:"counts"`
	Sum    float64   `json:"sum_s"`
}

// Connection describes an MPTCP connection.
type Connection struct {
	Token  string         `json:"token"` // hexadecimal
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// Server is the server that the program means, if the connection goes to a converter, which Remote is then. Converter
	// is the member whose converter it is. Both are empty for other connections, and if the server is not known.
	Server    netip.AddrPort `json:"server,omitzero"`
	Converter string         `json:"converter,omitempty"`
	Since     time.Time      `json:"since"`
	// Policy is the name of the connection's [[policy]]. It is empty if [client] applies.
	Policy string `json:"policy,omitempty"`
	// Traffic is the kind of traffic that was observed: short, messages or bulk.
	Traffic string `json:"traffic,omitempty"`
	// Note explains what the connection waits for, that it tries waypoints, or why it has no detour. NoteReason has it in a
	// form for programs.
	Note       string    `json:"note,omitempty"`
	NoteReason *Reason   `json:"note_reason,omitempty"`
	Subflows   []Subflow `json:"subflows"`
	// Tried lists the waypoints that a bulk connection tried, with the results, the earliest first.
	Tried []Tried `json:"tried,omitempty"`
	// Left lists the last paths that the connection left, one for each path and cause, the earliest first.
	Left []Left `json:"left,omitempty"`
}

// Destination returns the server that the program means.
func (c *Connection) Destination() netip.AddrPort {
	if c.Server.IsValid() {
		return c.Server
	}
	return c.Remote
}

// Tried is the result of trying a waypoint.
type Tried struct {
	Waypoint string    `json:"waypoint"`
	At       time.Time `json:"at"`
	// Verdict is measured, kept, lost, disturbed, left or unreached. Why explains it in a sentence.
	Verdict string `json:"verdict"`
	Why     string `json:"why"`
	// Goodput is the rate through the waypoint in bits of payload per second, like the rates below.
	Goodput float64 `json:"goodput_bps"`
	// Instead is the waypoint whose place it took. It is empty if that was in the screening.
	Instead string `json:"instead,omitempty"`
	// With is the rate of all bulk connections to the network together with the waypoint, Before the rate before it.
	With   float64 `json:"with_bps,omitempty"`
	Before float64 `json:"before_bps,omitempty"`
}

// Left is a path that a connection left while it went on.
type Left struct {
	Kind     string    `json:"kind"`
	Waypoint string    `json:"waypoint,omitempty"`
	At       time.Time `json:"at"`
	// Ended is set if the subflow ended. Otherwise it became a backup.
	Ended bool `json:"ended"`
	// Why is the reason, as a clause that follows "because". Reason has it in a form for programs.
	Why    string `json:"why"`
	Reason Reason `json:"reason"`
}

// Subflow describes a subflow of a connection.
type Subflow struct {
	Kind     string         `json:"kind"` // direct, wireguard, openvpn, in-band, mapped, unknown
	Waypoint string         `json:"waypoint,omitempty"`
	State    SubflowState   `json:"state"`
	Local    netip.AddrPort `json:"local"`
	Remote   netip.AddrPort `json:"remote"`
	Since    time.Time      `json:"since"`
	// RTT and MinRTT are in milliseconds. Rates are in bits per second, over about the last second. Bytes are payload.
	// RTT is the latest that is known: of data that this host sent, or of data that arrives without a pause while this
	// host sends none. RTTAge is the time since it was measured, in seconds.
	RTT           float64 `json:"rtt_ms"`
	RTTAge        float64 `json:"rtt_age_s"`
	MinRTT        float64 `json:"min_rtt_ms"`
	SendRate      float64 `json:"send_bps"`
	ReceiveRate   float64 `json:"receive_bps"`
	BytesSent     uint64  `json:"bytes_sent"` // acknowledged by the peer
	BytesReceived uint64  `json:"bytes_received"`
	Segments      uint64  `json:"segments_sent"` // with payload, including retransmissions
	Retransmitted uint64  `json:"segments_retransmitted"`
	// Queued is the number of bytes that this host gave to the subflow and the peer has not acknowledged. They wait, or
	// are in flight.
	Queued     uint64 `json:"queued_bytes"`
	CongWindow uint32 `json:"cwnd_segments"`
	// Why is the reason for choosing this detour, or for setting it aside. Reason has it in a form for programs.
	Why    string  `json:"why,omitempty"`
	Reason *Reason `json:"reason,omitempty"`
	// ReceiverRTT is the round trip that arriving data shows; it includes the sender's pauses, and is 0 if not known.
	// Heard is the time since data last arrived. Both are in milliseconds, and are set for package history only.
	ReceiverRTT float64 `json:"-"`
	Heard       float64 `json:"-"`
}

// Waypoint describes one address of one waypoint.
type Waypoint struct {
	Name  string         `json:"name"`
	Addr  netip.AddrPort `json:"address"`
	State WaypointState  `json:"state"`
	Since time.Time      `json:"since"`
	// Why is the reason why it is not used; empty if it is used.
	Why  string  `json:"why,omitempty"`
	RTT  float64 `json:"rtt_ms"`
	Loss float64 `json:"loss"` // of the session's own packets, 0..1
	// LossPackets is the number of packets from which Loss was computed. Older packets count less.
	LossPackets uint64 `json:"loss_packets"`
	Mappings    int    `json:"mappings"`
	Subflows    int    `json:"subflows"`
	// Kinds are the kinds of detours, in the client's order of preference.
	Kinds []WaypointKind `json:"kinds"`
}

// WaypointKind describes the state of one kind of detour at one address of a waypoint.
type WaypointKind struct {
	Kind  string    `json:"kind"`
	State KindState `json:"state"`
	// Why is the reason why it is not ready, or not ready for some servers.
	Why string `json:"why,omitempty"`
	// Remote is the UDP address to which a tunnel sends its packets. It is absent without a grant, and for kinds
	// without a tunnel.
	Remote netip.AddrPort `json:"remote,omitzero"`
}

// Serving describes the waypoint role.
type Serving struct {
	Listen   string         `json:"listen"`
	Sessions int            `json:"sessions"`
	Mappings int            `json:"mappings"`
	Granted  uint64         `json:"granted"`
	Refused  map[string]int `json:"refused"` // by code
	Offers   []string       `json:"offers"`  // kinds of detours
	InBand   *InBand        `json:"in_band,omitempty"`
	// FastFlows is the number of members' connections that bypass netfilter. It is nil if none may.
	FastFlows *int     `json:"fast_flows,omitempty"`
	Members   []Served `json:"members"`
	Given     Given    `json:"given"`
	// Outside describes how members in other networks reach it.
	Outside *Outside `json:"outside,omitempty"`
}

// Outside describes how others reach the sessions' port of a waypoint over IPv4.
type Outside struct {
	Address netip.AddrPort `json:"address,omitzero"` // absent if not known
	Leaves  Reachability   `json:"leaves"`
	NAT     string         `json:"nat"` // its kind, in words
	// Why is the reason why Leaves is not-known, and when it is checked again.
	Why string `json:"why,omitempty"`
	// Asked is the number of members that were asked for this host's external address. Answered is the number of
	// answers.
	Asked    int `json:"asked"`
	Answered int `json:"answered"`
	// Own is this host's address. Gateway is the router that was asked to open ports, if any. Router is the protocol of
	// the router (PCP, NAT-PMP, UPnP), and Opened lists the ports that it opened.
	Own     netip.Addr   `json:"own,omitzero"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
	Router  string       `json:"router,omitempty"`
	Opened  []OpenedPort `json:"opened,omitempty"`
	// Problem is the reason why the router has not opened a port, or why that does not help. Fix tells the user what
	// to do about it; the schema calls it "mend", and keeps the names of its fields.
	Problem string `json:"problem,omitempty"`
	Fix     string `json:"mend,omitempty"`
}

// OpenedPort is a port that the router forwards to this host.
type OpenedPort struct {
	Protocol string         `json:"protocol"`
	Port     uint16         `json:"port"` // at this host
	External netip.AddrPort `json:"external"`
}

// Given describes the operator's limits, and how much of the quota is used.
type Given struct {
	// Open reports whether members may open connections now. If not, Closed is the reason, and Until the time when they
	// may again, if known.
	Open   bool        `json:"open"`
	Closed ClosedCause `json:"closed,omitempty"`
	Until  time.Time   `json:"until,omitzero"`
	Hours  []string    `json:"hours"` // none: always
	// Configured destinations. Special-purpose addresses are denied unless they are allowed here.
	Allow     []netip.Prefix `json:"allow"`
	Deny      []netip.Prefix `json:"deny"`
	DenyPorts []int          `json:"deny_ports"`
	// Limits in bits per second; 0 means no limit. Bandwidth is for all members together, in each direction.
	// BandwidthPerMember is for one member, both directions together.
	Bandwidth          int64 `json:"bandwidth_bps"`
	BandwidthPerMember int64 `json:"bandwidth_per_member_bps"`
	// The monthly quota, if there is one.
	QuotaBytes uint64    `json:"quota_bytes,omitempty"`
	UsedBytes  uint64    `json:"used_bytes,omitempty"`
	Renews     time.Time `json:"renews,omitzero"`
	// Members lists members with terms of their own, by name.
	Members []GivenMember `json:"members,omitempty"`
}

// GivenMember describes what one member may use, within what holds for all.
type GivenMember struct {
	Member string `json:"member"`
	// Open, Closed and Until have the same meaning as in Given, by the member's own terms only.
	Open   bool           `json:"open"`
	Closed ClosedCause    `json:"closed,omitempty"`
	Until  time.Time      `json:"until,omitzero"`
	Only   []netip.Prefix `json:"only"` // servers; none: all
	Deny   []netip.Prefix `json:"deny"`
	Ports  []uint16       `json:"ports"` // of servers; none: all
	Hours  []string       `json:"hours"` // none: always
	// The monthly quota, if there is one, and how much of it is used.
	QuotaBytes uint64 `json:"quota_bytes,omitempty"`
	UsedBytes  uint64 `json:"used_bytes,omitempty"`
}

// SwitchRequest opens or closes the waypoint.
type SwitchRequest struct {
	On bool `json:"on"`
	// OffSeconds is the time for which it stays closed; 0: until it is opened.
	OffSeconds float64 `json:"off_s,omitempty"`
}

// InBand counts a waypoint's SYNs with the in-band option.
type InBand struct {
	// Authenticated reports whether SYNs need an authenticator, and not only a known source address.
	Authenticated bool `json:"authenticated"`
	Addresses     int  `json:"addresses"` // from which SYNs are accepted now
	// SYNs that were accepted, and rejected by reason. All are zero without the authenticator.
	Accepted         uint64 `json:"accepted"`
	UnknownAddress   uint64 `json:"unknown_address"`
	BadAuthenticator uint64 `json:"bad_authenticator"`
	Replayed         uint64 `json:"replayed"`
	Malformed        uint64 `json:"malformed"`
}

// Served describes one member's use of this waypoint.
type Served struct {
	Member   string `json:"member"`
	Sessions int    `json:"sessions"`
	Mappings int    `json:"mappings"`
	Tunnels  int    `json:"tunnels"` // WireGuard and OpenVPN; the client has a session
	Flows    int    `json:"flows"`
	Bytes    uint64 `json:"bytes"`
	Expelled bool   `json:"expelled,omitempty"` // or it has left
}

// Present reports whether the member uses this waypoint now.
func (s *Served) Present() bool { return !s.Expelled && s.Sessions+s.Mappings+s.Tunnels+s.Flows > 0 }

// MapRequest asks the agent for a mapping: a port of the waypoint that leads to the server.
type MapRequest struct {
	Server   netip.AddrPort `json:"server"`
	Waypoint string         `json:"waypoint"`
}

// MapAnswer contains the address to connect to.
type MapAnswer struct {
	Address      netip.AddrPort `json:"address"`
	LeaseSeconds float64        `json:"lease_seconds"`
}

// Failure is the body of an answer with a status other than 200.
type Failure struct {
	Message string `json:"error"`
}
