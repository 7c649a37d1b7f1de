package enrol

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// The topics of messages between members and coordinators on the bus.
const (
	// TopicRecord: a member asks that its record be taken (directory.SignedRecord, CBOR). The answer is
	// empty if it was, or a RecordAnswer, JSON.
	TopicRecord = "record"
	// TopicDirectory: a member asks for what it lacks (directory.Ask); to all: what is new (directory.Batch).
	TopicDirectory = "directory"
	// TopicTrust: a member asks for roots and lists, with the hash of those it has, or nothing; the answer,
	// and what is told to all, is a TrustMessage, JSON.
	TopicTrust = "trust"
	// TopicEnforced: a waypoint tells which roots and lists it enforces, by their hash: nobody who is revoked
	// there has anything at it any more. There is no answer.
	TopicEnforced = "enforced"
	// TopicCheck: a coordinator asks a member to try another's addresses (Check, JSON).
	TopicCheck = "check"
	// TopicChecked: the member tells what came of it (Checked, JSON).
	TopicChecked = "checked"
	// TopicPunch: a member asks that another send packets to it (Punch, JSON), so that it is let in by what
	// stands before that one; the coordinator passes it on. The answer is empty.
	TopicPunch = "punch"
	// TopicReachability: a member asks who cannot be reached; the answer, and what is told to all, is a
	// Reachability, JSON.
	TopicReachability = "reachability"
)

// TrustMessage is roots and revocation lists (contents of ca.crt and ca.crl). What does not fit in a
// message on the bus is told as its hash alone: who has another one then fetches it over HTTPS, a little
// later, as all members hear of it at once.
type TrustMessage struct {
	Roots string `json:"roots,omitempty"`
	Lists string `json:"lists,omitempty"`
	Hash  string `json:"hash,omitempty"` // HashTrust of the two
}

// HashTrust names what a member believes: two with the same have the same roots and lists.
func HashTrust(t *collective.Trust) string {
	h := sha256.New()
	for _, part := range [][]byte{t.Roots(), t.Lists()} {
		sum := sha256.Sum256(part)
		h.Write(sum[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// NewTrustMessage is a reading of roots and lists, to be sent.
func NewTrustMessage(t *collective.Trust) TrustMessage {
	return TrustMessage{Roots: string(t.Roots()), Lists: string(t.Lists()), Hash: HashTrust(t)}
}

// Whole says whether there is more in it than the hash.
func (m TrustMessage) Whole() bool { return m.Roots != "" || m.Lists != "" }

// Check is what a member shall try: a handshake of a session with another, at each address until one works.
type Check struct {
	ID        string       `json:"id"` // to be sent back
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses"`
	Port      uint16       `json:"port"`
	// Within is how many seconds the coordinator waits for the answer.
	Within int `json:"within"`
	// Record is where the other names these addresses (directory.SignedRecord, CBOR). Empty: in the directory.
	Record []byte `json:"record,omitempty"`
}

// RecordAnswer says why a record was not taken: nobody has shown yet that it is its member who is at these
// addresses. They are being tried. A record without them is taken now.
type RecordAnswer struct {
	Unshown []netip.Addr `json:"unshown"`
}

// Checked is what came of it.
type Checked struct {
	ID        string `json:"id"`
	Reachable bool   `json:"reachable"`
	Why       string `json:"why,omitempty"` // it is not, in words
}

// Punch asks a member to knock (package nat): to send STUN requests with the ID from its sessions' UDP port
// to where another is seen.
type Punch struct {
	// With is who is to knock, in what a member asks; in what the coordinator passes on, who wants it.
	With string           `json:"with"`
	ID   PunchID          `json:"id"`
	At   []netip.AddrPort `json:"at"`
}

// PunchID is in the packets, so that both ends know them; base64 in JSON.
type PunchID [12]byte

// MarshalText is for JSON.
func (id PunchID) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, id[:]), nil
}

// UnmarshalText is for JSON.
func (id *PunchID) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil || len(b) != len(id) {
		return fmt.Errorf("%.40q is no ID of %d bytes", text, len(id))
	}
	*id = PunchID(b)
	return nil
}

// MaxPlaces is how many places a Punch may name.
const MaxPlaces = 4

// Check says what is wrong with it: places must be such as a host can be seen at.
func (p Punch) Check() error {
	if len(p.At) == 0 || len(p.At) > MaxPlaces {
		return fmt.Errorf("%d places to knock at: 1 to %d", len(p.At), MaxPlaces)
	}
	for _, at := range p.At {
		if a := at.Addr(); !a.IsGlobalUnicast() || a.Is4In6() || a.Zone() != "" || at.Port() < 1024 {
			return fmt.Errorf("nobody is to knock at %v", at)
		}
	}
	return nil
}

// Reachability is the coordinators' word on who cannot be reached, though it says that it is a waypoint.
// It replaces what was said before.
type Reachability struct {
	At          time.Time `json:"at"`
	Unreachable []string  `json:"unreachable"`
	// Untried are waypoints of which nothing is known yet, as nobody has tried them often enough.
	Untried []string `json:"untried,omitempty"`
	// You is there in an answer, when others have tried to reach who asks.
	You *Tried `json:"you,omitempty"`
}

// Tried is what came of it when members last tried to reach a waypoint at the addresses of its record.
type Tried struct {
	At  time.Time `json:"at"`
	Yes int       `json:"yes"` // to whom it answered
	Of  int       `json:"of"`  // who tried
	// By are those to whom it answered; if it answered nobody, those who tried.
	By  []string `json:"by"`
	Why string   `json:"why,omitempty"` // it did not, in the words of one
}
