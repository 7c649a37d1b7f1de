// Package attribution is a waypoint's record of who caused which traffic: JSON lines in a file of
// bounded size. Writing never waits for the disk and never stops forwarding; what could not be
// written is counted and reported. Only package waypoint may write it; its entries are a format
// that operators read for years, so fields are only ever added.
package attribution

import (
	"net/netip"
	"time"
)

// Event is what an entry tells of.
type Event string

// The events.
const (
	MappingGranted Event = "mapping-granted"
	MappingExpired Event = "mapping-expired"
	MappingRemoved Event = "mapping-removed" // forbidden since, or its member expelled
	Refused        Event = "refused"
	FlowOpened     Event = "flow-opened"
	FlowFound      Event = "flow-found" // was open already when the agent began to look
	FlowClosed     Event = "flow-closed"
	MemberExpelled Event = "member-expelled"
	// Leave to reach any server that is not forbidden, in-band or through a tunnel.
	AdmissionGranted Event = "admission-granted"
	AdmissionEnded   Event = "admission-ended"
)

// Entry is one line. Absent fields have no meaning for the event.
type Entry struct {
	Time   time.Time `json:"time"`
	Event  Event     `json:"event"`
	Member string    `json:"member"`
	Serial string    `json:"serial"` // of the member's certificate
	// Kind is that of the detour, where it is not a mapping.
	Kind string `json:"kind,omitempty"`

	// Client is where the member calls from, ClientPort its port (flows only); Port is the port of
	// this waypoint that it calls; Server is where that leads.
	Client     netip.Addr     `json:"client,omitzero"`
	ClientPort uint16         `json:"client_port,omitempty"`
	Port       uint16         `json:"port,omitempty"`
	Server     netip.AddrPort `json:"server,omitzero"`
	// Tunnel is the member's address in the tunnel.
	Tunnel netip.Addr `json:"tunnel,omitzero"`
	// Egress is the address and port that the server sees: what a complaint will name.
	Egress netip.AddrPort `json:"egress,omitzero"`

	LeaseSeconds float64 `json:"lease_s,omitempty"`

	Refusal string `json:"refusal,omitempty"` // its code
	Reason  string `json:"reason,omitempty"`
	// Repeated counts equal refusals since the last such line that were not written.
	Repeated int `json:"repeated,omitempty"`

	Opened time.Time `json:"opened,omitzero"`
	// Bytes of IP packets by direction; absent if the end of the flow was not seen.
	BytesFromClient *uint64 `json:"bytes_from_client,omitempty"`
	BytesToClient   *uint64 `json:"bytes_to_client,omitempty"`
}
