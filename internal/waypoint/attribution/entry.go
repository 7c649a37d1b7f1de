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
	MappingRemoved Event = "mapping-removed" // forbidden since, or its member expelled
	Refused        Event = "refused"
	FlowOpened     Event = "flow-opened"
	FlowFound      Event = "flow-found" // was open already when the agent began to look
	FlowClosed     Event = "flow-closed"
	MemberExpelled Event = "member-expelled"
	// Leave to reach any server that is not forbidden, in-band or through a tunnel.
	AdmissionGranted Event = "admission-granted"
	AdmissionEnded   Event = "admission-ended"
	// EntriesSummarised stands for lines of a member that has used up its share of the log (shares.go).
	EntriesSummarised Event = "entries-summarised"
)

// Entry is one line about a member. Absent fields have no meaning for the event.
type Entry struct {
	Time   time.Time `json:"time"`
	Event  Event     `json:"event"`
	Member string    `json:"member,omitempty"`
	Serial string    `json:"serial,omitempty"` // of the member's certificate
	// By is the session over which the member asked for what the entry is about; nil if that is not
	// known, as after a restart.
	By *Session `json:"-"`
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

	// Summarised is how many lines there would have been since Opened, and Servers the servers that were called, the
	// most frequent first. The rest of many stands in further entries of the same time.
	Summarised int           `json:"summarised,omitempty"`
	Servers    []ServerLines `json:"servers,omitempty"`

	Opened time.Time `json:"opened,omitzero"` // of a flow, of a session that is shown, or of what is summarised
	// Bytes of IP packets by direction; absent if the end of the flow was not seen. They lack what the fast path
	// carried for an agent that was killed, if the next one could not read it.
	BytesFromClient *uint64 `json:"bytes_from_client,omitempty"`
	BytesToClient   *uint64 `json:"bytes_to_client,omitempty"`
}

// ServerLines is how many lines about one server were summarised.
type ServerLines struct {
	Server netip.Addr `json:"server"`
	Lines  int        `json:"lines"`
}

// Session is a member's session with this waypoint, with the member's signature over it. Entries point to
// theirs, and it is written into every file that has such entries, before the first of them: a member that
// opens sessions in a loop and causes nothing writes nothing. It is never changed.
type Session struct {
	wire.Proof
	Opened time.Time // by this waypoint's clock
}

// The log's own events.
const (
	// fileBegan is the first line of every file.
	fileBegan Event = "file-began"
	// logResumed says that an agent goes on with the log of one before.
	logResumed Event = "log-resumed"
	// entriesLost stands where entries could not be written.
	entriesLost Event = "entries-lost"
	// sessionShown is the proof of a session.
	sessionShown Event = "session-shown"
	// headSigned is the waypoint's signature over everything before; logClosed one that ends the log
	// until the next agent goes on with it.
	headSigned Event = "head-signed"
	logClosed  Event = "log-closed"
)

// line is one line of a file: an entry, or one of the log's own, and its place in the chain.
type line struct {
	N uint64 `json:"n"` // grows by one a line, over all files
	Entry
	Session wire.SessionID `json:"session,omitzero"`

	Format     int       `json:"format,omitempty"`
	Collective string    `json:"collective,omitempty"`
	Waypoint   string    `json:"waypoint,omitempty"`
	Log        logID     `json:"log,omitzero"`
	Began      time.Time `json:"began,omitzero"` // the log

	Unclean      bool   `json:"unclean,omitempty"`       // the agent before did not stop by itself
	DroppedBytes int64  `json:"dropped_bytes,omitempty"` // half a line that a crash left
	Lost         uint64 `json:"lost,omitempty"`

	Stated    time.Time `json:"stated,omitzero"` // the time in the member's statement
	Signature []byte    `json:"signature,omitempty"`
	Chain     [][]byte  `json:"chain,omitempty"` // certificates in DER, the signer's own first

	Prev hash `json:"prev,omitzero"` // of the line before, without its newline
}

// format is the version of the lines: what is there keeps its meaning while it stays the same.
const format = 1

// proof is the evidence in a line that shows a session, in the log of that waypoint.
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

// evidence is the line that proof reads.
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
