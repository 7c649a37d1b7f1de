package attribution

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// Event names the kind of an entry.
type Event string

// The events.
const (
	MappingGranted Event = "mapping-granted"
	MappingExpired Event = "mapping-expired"
	MappingRemoved Event = "mapping-removed" // its server became forbidden, or its member was expelled
	Refused        Event = "refused"
	FlowOpened     Event = "flow-opened"
	FlowFound      Event = "flow-found" // it was open when the agent started
	FlowClosed     Event = "flow-closed"
	MemberExpelled Event = "member-expelled"
	// Permission to reach any server that is not forbidden, in-band or through a tunnel.
	AdmissionGranted Event = "admission-granted"
	AdmissionEnded   Event = "admission-ended"
	// EntriesSummarised replaces lines of a member that has used up its share of the log (shares.go).
	EntriesSummarised Event = "entries-summarised"
)

// Entry is a line about a member. Fields without a meaning for the event are absent.
type Entry struct {
	Time   time.Time `json:"time"`
	Event  Event     `json:"event"`
	Member string    `json:"member,omitempty"`
	Serial string    `json:"serial,omitempty"` // of the member's certificate
	// By is the session of the member's request. It is nil if not known, as after a restart.
	By *Session `json:"-"`
	// Kind is the kind of detour; absent for a mapping.
	Kind string `json:"kind,omitempty"`

	// Client and ClientPort (flows only) are the member's address and port. Port is the port of this waypoint to which
	// the member connects, and Server is the server to which that port leads.
	Client     netip.Addr     `json:"client,omitzero"`
	ClientPort uint16         `json:"client_port,omitempty"`
	Port       uint16         `json:"port,omitempty"`
	Server     netip.AddrPort `json:"server,omitzero"`
	// Tunnel is the member's address in the tunnel.
	Tunnel netip.Addr `json:"tunnel,omitzero"`
	// Egress is the address and port that the server sees, which a complaint will name.
	Egress netip.AddrPort `json:"egress,omitzero"`

	LeaseSeconds float64 `json:"lease_s,omitempty"`

	Refusal string `json:"refusal,omitempty"` // its code
	Reason  string `json:"reason,omitempty"`
	// Repeated counts equal refusals since the last such line, which were not written.
	Repeated int `json:"repeated,omitempty"`

	// Summarised is the number of lines that there would have been since Opened. Servers are the servers of these lines,
	// the most frequent first. If there are too many, further entries of the same time have the rest.
	Summarised int           `json:"summarised,omitempty"`
	Servers    []ServerLines `json:"servers,omitempty"`

	Opened time.Time `json:"opened,omitzero"` // of a flow, of a shown session, or of the summarised period
	// Bytes of IP packets by direction; absent if the end of the flow was not seen. They lack bytes on the fast path
	// of an agent that was killed, if the next one could not read them.
	BytesFromClient *uint64 `json:"bytes_from_client,omitempty"`
	BytesToClient   *uint64 `json:"bytes_to_client,omitempty"`
}

// ServerLines is the number of summarised lines about one server.
type ServerLines struct {
	Server netip.Addr `json:"server"`
	Lines  int        `json:"lines"`
}

// Session is a member's session with this waypoint, with the member's signature. Entries refer to their session. Each
// file contains the sessions to which its entries refer, before the first such entry. So a member that only opens
// sessions in a loop causes no lines. A Session is immutable.
type Session struct {
	wire.Proof
	Opened time.Time // by this waypoint's clock
}

// The log's own events.
const (
	// fileBegan is the first line of every file.
	fileBegan Event = "file-began"
	// logResumed is written when an agent continues the log of an earlier one.
	logResumed Event = "log-resumed"
	// entriesLost is written where entries are missing.
	entriesLost Event = "entries-lost"
	// sessionShown is the proof of a session.
	sessionShown Event = "session-shown"
	// headSigned is the waypoint's signature over everything before. logClosed is the last one of an agent that
	// stops.
	headSigned Event = "head-signed"
	logClosed  Event = "log-closed"
)

// line is a line of a file: an entry, or one about the log itself, with its position in the chain.
type line struct {
	N uint64 `json:"n"` // grows by one with each line, across all files
	Entry
	Session wire.SessionID `json:"session,omitzero"`

	Format     int       `json:"format,omitempty"`
	Collective string    `json:"collective,omitempty"`
	Waypoint   string    `json:"waypoint,omitempty"`
	Log        logID     `json:"log,omitzero"`
	Began      time.Time `json:"began,omitzero"` // the log

	Unclean      bool   `json:"unclean,omitempty"`       // the previous agent was killed
	DroppedBytes int64  `json:"dropped_bytes,omitempty"` // a partial line that a crash left
	Lost         uint64 `json:"lost,omitempty"`

	Stated    time.Time `json:"stated,omitzero"` // the time in the member's statement
	Signature []byte    `json:"signature,omitempty"`
	Chain     [][]byte  `json:"chain,omitempty"` // certificates in DER, the signer's own first

	Prev hash `json:"prev,omitzero"` // of the previous line, without its newline
}

// format is the version of the lines. Within a version, fields keep their meaning.
const format = 1

// proof returns the session in a sessionShown line, in the log that begins with the line of.
func (l *line) proof(of *line) *Session {
	return &Session{
		Proof: wire.Proof{
			Statement: wire.Statement{
				Collective: of.Collective, Member: l.Member, Serial: l.Serial, Waypoint: of.Waypoint, Session: l.Session, Time: l.Stated,
			},
			Signature: l.Signature, Chain: l.Chain,
		},
		Opened: l.Opened,
	}
}

// evidence returns the sessionShown line of s; see proof.
func (s *Session) evidence(now time.Time) line {
	return line{
		Entry:   Entry{Time: now, Event: sessionShown, Member: s.Member, Serial: s.Serial, Opened: s.Opened},
		Session: s.Session, Stated: s.Time, Signature: s.Signature, Chain: s.Chain,
	}
}

func (l *line) encode(dst []byte) []byte {
	text, err := json.Marshal(l)
	if err != nil {
		panic("attribution: an entry that is no JSON: " + err.Error()) // it holds only plain types
	}
	return append(dst, text...)
}
