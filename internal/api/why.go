package api

import (
	"net/netip"
	"slices"
	"time"
)

// WhySchema is the version of Why.
const WhySchema = "dcol.why/1"

// WhyRequest asks which paths connections to a server take, and why.
type WhyRequest struct {
	// Server's port is 0 for connections to any port.
	Server netip.AddrPort `json:"server"`
}

// Why explains which paths connections to a server take, and which a new one would take.
type Why struct {
	Schema string         `json:"schema"`
	Server netip.AddrPort `json:"server"` // the server of the new connection
	// Connections are the open ones, the oldest first. Closed are those that ended recently, the latest first.
	Connections []Connection       `json:"connections"`
	Closed      []ClosedConnection `json:"closed"`
	// Direct describes the direct path to the server's network.
	Direct Outlook `json:"direct"`
	// Candidates are the detours that lead to the server. First are those that a new connection would take, in that
	// order.
	Candidates []Candidate `json:"candidates"`
	// Unavailable lists the waypoints in use through which no detour leads to the server now, and why.
	Unavailable []Unavailable `json:"unavailable,omitempty"`
	// Note is the reason why a new connection would take no detour. NoteReason has it in a form for programs.
	Note       string  `json:"note,omitempty"`
	NoteReason *Reason `json:"note_reason,omitempty"`
	// Converter is a sentence about new connections that go through a converter: under which condition they do, and to
	// which address. It is empty if none do.
	Converter string `json:"converter,omitempty"`
	// Fixes lists what the user can do about the reasons, if there is anything. The schema calls them
	// "mends", and keeps the names of its fields.
	Fixes []string `json:"mends,omitempty"`
	// Probed holds the results of probes of the path to the server and of the paths to waypoints. It is empty if the
	// agent may not probe.
	Probed []ProbedPath `json:"probed,omitempty"`
}

// KeepOnly removes all connections but the live one with a token. If that has ended meanwhile, all stay.
func (w *Why) KeepOnly(token string) {
	if i := slices.IndexFunc(w.Connections, func(c Connection) bool { return c.Token == token }); i >= 0 {
		w.Connections, w.Closed = w.Connections[i:i+1], []ClosedConnection{}
	}
}

// Unavailable is a waypoint through which no detour leads to a server now.
type Unavailable struct {
	Waypoint string        `json:"waypoint"`
	State    WaypointState `json:"state"`
	Why      string        `json:"why"`
}

// ProbedPath is the result of probing a path.
type ProbedPath struct {
	At         time.Time      `json:"at"`
	To         netip.AddrPort `json:"to"`
	Waypoint   string         `json:"waypoint,omitempty"` // whose address it is
	Recipe     string         `json:"recipe"`             // of docs/trace.md
	Outcome    string         `json:"outcome"`
	Confidence string         `json:"confidence"`
	Text       string         `json:"text"` // a sentence
	Evidence   []string       `json:"evidence"`
}

// ClosedConnection is a connection that has ended, as it was before. Its subflows have no counts.
type ClosedConnection struct {
	Connection
	Ended time.Time `json:"ended"`
}

// Measured has the measurements of connections on a path to a network of servers.
type Measured struct {
	At     time.Time `json:"at,omitzero"` // absent: never
	MinRTT float64   `json:"min_rtt_ms,omitempty"`
	Loss   float64   `json:"loss"` // 0..1
	// Packets is the number of packets from which Loss was computed, up to 10,000.
	Packets uint64 `json:"packets,omitempty"`
	// Goodput is the rate of bulk traffic, in bits of payload per second; absent: unknown.
	Goodput float64 `json:"goodput_bps,omitempty"`
	// Failures counts recent failures of subflows towards the server.
	Failures int `json:"failures"`
}

// Outlook has the measurements of the direct path, and what they let a new connection expect. Loss is what decisions count:
// less than was measured if few packets prove it, or if it is minutes old. Wait and Expected are as in Candidate.
type Outlook struct {
	Measured
	Wait     float64  `json:"wait_ms,omitempty"`
	Expected *float64 `json:"expected_bps,omitempty"`
}

// Candidate is a detour that a new connection might take.
type Candidate struct {
	Waypoint string `json:"waypoint"`
	// Addr is the waypoint's address to which the detour leads. It is absent for a path without a waypoint.
	Addr  netip.Addr `json:"address,omitzero"`
	Kind  string     `json:"kind"`
	Taken bool       `json:"taken"` // it would be taken now
	// Untried is set if no connection to the server took it recently, as far as the agent remembers.
	Untried  bool     `json:"untried,omitempty"`
	Measured Measured `json:"measured"`
	// Wait is the estimated time that a message over the detour waits for its answer, in milliseconds. It is absent if
	// unknown. If Guessed is set, it is derived from the round trips of the waypoint's session and of the direct path. If
	// AtLeast is set, too, that of the direct path is not known, and Wait has only the way to the waypoint.
	Wait    float64 `json:"wait_ms,omitempty"`
	Guessed bool    `json:"guessed,omitempty"`
	AtLeast bool    `json:"at_least,omitempty"`
	// Expected is the rate that one more bulk connection may expect beside those that run now, in bits per second. It is
	// 0 if the detour adds nothing to the direct path, and absent if unknown.
	Expected *float64 `json:"expected_bps,omitempty"`
	Why      string   `json:"why"`
	// Change names, in words, an event that would change the choice. It is absent if the choice only changes with time.
	Change string `json:"change,omitempty"`
	// Reason is the reason in a form for programs.
	Reason Reason `json:"reason"`
	// Until is the time when the reason will end by itself. It is absent if not known.
	Until time.Time `json:"until,omitzero"`
	// Claimed has other members' measurements of the waypoint. It is absent if there are none.
	Claimed *Claimed `json:"claimed,omitempty"`
	// Bottlenecks compares the path through the waypoint with the direct path and with those through other waypoints, as far
	// as they were compared.
	Bottlenecks []Bottleneck `json:"bottlenecks,omitempty"`
}

// Reason explains why a detour would be taken or not, why a subflow is used as it is, why a path was left, or why there is no
// detour, with the numbers that decided. Numbers that do not belong to the code are absent.
type Reason struct {
	// Code is one of the words in docs/cli.md. Their meaning does not change.
	Code string `json:"code"`
	// Loss is the share of packets that were lost, for the code "lossy".
	Loss float64 `json:"loss,omitempty"` // 0..1
	// Failures counts recent failures, for the code "failures".
	Failures int `json:"failures,omitempty"`
	// Budget is the key of client.budget that is used up, for the codes "rests-budget" and "budget".
	Budget string `json:"budget,omitempty"`
	// Goodput is the rate of bulk traffic on the path, Before its earlier rate. With and Without are the rates on all paths
	// together, with and without this one. Limit is the highest rate that the path may have. All are in bits per second.
	Goodput float64 `json:"goodput_bps,omitempty"`
	Before  float64 `json:"before_bps,omitempty"`
	With    float64 `json:"with_bps,omitempty"`
	Without float64 `json:"without_bps,omitempty"`
	Limit   float64 `json:"limit_bps,omitempty"`
	// Missed counts the bytes that the other paths could have carried while they waited for this one. Held counts the bytes
	// that had arrived on them and waited. Carried counts those that this path carried.
	Missed  uint64 `json:"missed_bytes,omitempty"`
	Held    uint64 `json:"held_bytes,omitempty"`
	Carried uint64 `json:"carried_bytes,omitempty"`
	// Silent is the time for which nothing came over the path, in milliseconds. Unanswered counts probes without an answer.
	Silent     float64 `json:"silent_ms,omitempty"`
	Unanswered int     `json:"unanswered,omitempty"`
	// Compared has the numbers of this path and of others, side by side.
	Compared []Compared `json:"compared,omitempty"`
}

// Compared has numbers of a path and of another one. Numbers that are unknown or were not compared are absent.
type Compared struct {
	With         string  `json:"with"` // the other's waypoint; empty: the direct path
	Goodput      float64 `json:"goodput_bps,omitempty"`
	OtherGoodput float64 `json:"other_goodput_bps,omitempty"`
	Wait         float64 `json:"wait_ms,omitempty"`
	OtherWait    float64 `json:"other_wait_ms,omitempty"`
	Loss         float64 `json:"loss,omitempty"` // 0..1
	OtherLoss    float64 `json:"other_loss,omitempty"`
}

// Bottleneck describes whether two paths share their bottleneck. They are compared whenever a subflow on one of them
// starts or stops carrying bulk traffic while one on the other carries some.
type Bottleneck struct {
	With     string `json:"with,omitempty"` // the other's waypoint; absent: the direct path
	Relation string `json:"relation"`       // "shared", "apart" or "unknown"
	Pairs    int    `json:"pairs"`          // comparisons, at most the last 8
	// Lost is the mean share of a subflow's gain that the other lost. The true value is between Least and Most with a
	// probability of 95 %. All three are absent if there were fewer than three comparisons.
	Lost  float64 `json:"lost,omitempty"`
	Least float64 `json:"lost_least,omitempty"`
	Most  float64 `json:"lost_most,omitempty"`
}

// Claimed summarises other members' measurements of a waypoint. They decide only which of several unmeasured waypoints
// is tried first.
type Claimed struct {
	Members int `json:"members"` // that are believed
	Wrong   int `json:"wrong"`   // that are not believed, because their claims about others were wrong for this host
	// Proven is set if the earlier claims of these members, about other waypoints, were right for this host.
	Proven  bool   `json:"proven"`
	Loss    string `json:"loss,omitempty"`    // such as "0.5 to 2 %"; absent: unknown
	Goodput string `json:"goodput,omitempty"` // of bulk traffic, such as "16 to 64 Mbit/s"; absent: unknown
}
