package api

import (
	"net/netip"
	"time"
)

// LogSchema is the version of Log.
const LogSchema = "dcol.log/1"

// Log is a part of a waypoint's attribution log.
type Log struct {
	Schema string    `json:"schema"`
	Flows  []LogFlow `json:"flows"`
	// Older is the number of older matching connections that are left out.
	Older int `json:"older,omitempty"`
	// Sessions are those of the flows, with the evidence. They are absent unless requested.
	Sessions []LogSession `json:"sessions,omitempty"`
}

// LogFlow is one connection that the waypoint carried.
type LogFlow struct {
	Opened time.Time      `json:"opened"`
	Closed time.Time      `json:"closed,omitzero"` // absent: its end is not in the log
	Member string         `json:"member"`
	Serial string         `json:"serial"`
	Kind   string         `json:"kind"`
	Client netip.AddrPort `json:"client"` // its address in the tunnel, if it came by one
	Server netip.AddrPort `json:"server"`
	Egress netip.AddrPort `json:"egress"`
	// Bytes of IP packets; absent if the end was not seen.
	BytesFromClient *uint64 `json:"bytes_from_client,omitempty"`
	BytesToClient   *uint64 `json:"bytes_to_client,omitempty"`
	// Session is absent if only the member is known.
	Session string `json:"session,omitempty"`
}

// LogSession is the evidence on a session: a statement that the member has signed.
type LogSession struct {
	Session    string    `json:"session"`
	Collective string    `json:"collective"`
	Waypoint   string    `json:"waypoint"`
	Member     string    `json:"member"`
	Serial     string    `json:"serial"`
	Opened     time.Time `json:"opened"`  // by the waypoint's clock
	Stated     time.Time `json:"stated"`  // by the member's
	Message    []byte    `json:"message"` // what was signed
	Signature  []byte    `json:"signature"`
	Chain      [][]byte  `json:"chain"` // DER, the member's own certificate first
	Proven     bool      `json:"proven"`
	Why        string    `json:"why,omitempty"` // it is not
}
