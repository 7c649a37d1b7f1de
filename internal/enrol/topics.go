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
	// TopicRecord publishes a member's record (directory.SignedRecord, CBOR). The answer is empty if the record was
	// taken, or a RecordAnswer (JSON).
	TopicRecord = "record"
	// TopicDirectory requests changes of the directory (directory.Ask), and announces them to all (directory.Batch).
	TopicDirectory = "directory"
	// TopicTrust requests roots and lists, with the hash of those the member has, or nothing. The answer, and the
	// announcement to all, is a TrustMessage (JSON).
	TopicTrust = "trust"
	// TopicEnforced confirms that a waypoint enforces the roots and lists with this hash: members revoked there have
	// nothing at it any more. There is no answer.
	TopicEnforced = "enforced"
	// TopicCheck has a member try another's addresses (Check, JSON).
	TopicCheck = "check"
	// TopicChecked returns the result of a check (Checked, JSON).
	TopicChecked = "checked"
	// TopicPunch has another member send packets to the sender (Punch, JSON), so that the other's NAT lets the sender
	// in. The coordinator passes it on. The answer is empty.
	TopicPunch = "punch"
	// TopicReachability requests which waypoints cannot be reached. The answer, and the announcement to all, is a
	// Reachability (JSON).
	TopicReachability = "reachability"
)

// TrustMessage holds roots and revocation lists (contents of ca.crt and ca.crl). If they do not fit in a message on the
// bus, it holds only their hash. A member with another hash then fetches them over HTTPS, after a random pause, as all
// members get the message at once.
type TrustMessage struct {
	Roots string `json:"roots,omitempty"`
	Lists string `json:"lists,omitempty"`
	Hash  string `json:"hash,omitempty"` // HashTrust of the two
}

// HashTrust returns a hash of a member's roots and lists.
func HashTrust(t *collective.Trust) string {
	h := sha256.New()
	for _, part := range [][]byte{t.Roots(), t.Lists()} {
		sum := sha256.Sum256(part)
		h.Write(sum[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// NewTrustMessage returns a message with roots and lists.
func NewTrustMessage(t *collective.Trust) TrustMessage {
	return TrustMessage{Roots: string(t.Roots()), Lists: string(t.Lists()), Hash: HashTrust(t)}
}

// Whole reports whether m has roots and lists, not only their hash.
func (m TrustMessage) Whole() bool { return m.Roots != "" || m.Lists != "" }

// Check asks a member to try the handshake of a session with another member, at each address until one works.
type Check struct {
	ID        string       `json:"id"` // to send back
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses"`
	Port      uint16       `json:"port"`
	// Within is the number of seconds that the coordinator waits for the answer.
	Within int `json:"within"`
	// Record is the other member's record with these addresses (directory.SignedRecord, CBOR). Empty: the directory
	// has it.
	Record []byte `json:"record,omitempty"`
}

// RecordAnswer lists the addresses because of which a record was not taken: they are not known to be the member's own,
// and are being tried. A record without them is taken.
type RecordAnswer struct {
	Unshown []netip.Addr `json:"unshown"`
}

// Checked is the result of a Check.
type Checked struct {
	ID        string `json:"id"`
	Reachable bool   `json:"reachable"`
	Why       string `json:"why,omitempty"` // why it is not reachable
}

// Punch asks a member to send STUN requests with the ID from its sessions' UDP port to places where another member is
// seen (package nat).
type Punch struct {
	// With is the member that is to send; in what the coordinator passes on, the member that asks.
	With string           `json:"with"`
	ID   PunchID          `json:"id"`
	At   []netip.AddrPort `json:"at"`
}

// PunchID is in the packets, by which both ends recognise them. It is base64 in JSON.
type PunchID [12]byte

// MarshalText implements encoding.TextMarshaler.
func (id PunchID) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, id[:]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *PunchID) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil || len(b) != len(id) {
		return fmt.Errorf("%.40q is not an ID of %d bytes", text, len(id))
	}
	*id = PunchID(b)
	return nil
}

// MaxPlaces bounds the places that a Punch may name.
const MaxPlaces = 4

// Check returns an error if a host cannot be seen at one of the places.
func (p Punch) Check() error {
	if len(p.At) == 0 || len(p.At) > MaxPlaces {
		return fmt.Errorf("a request for hole punching must contain 1 to %d endpoints, not %d", MaxPlaces, len(p.At))
	}
	for _, at := range p.At {
		if a := at.Addr(); !a.IsGlobalUnicast() || a.Is4In6() || a.Zone() != "" || at.Port() < 1024 {
			return fmt.Errorf("%v is not a public address with a port of 1024 or above", at)
		}
	}
	return nil
}

// Reachability lists the waypoints that cannot be reached. It replaces earlier ones.
type Reachability struct {
	At          time.Time `json:"at"`
	Unreachable []string  `json:"unreachable"`
	// Untried lists waypoints that were not tried often enough yet.
	Untried []string `json:"untried,omitempty"`
	// You is set in an answer, if others have tried to reach the member that asks.
	You *Tried `json:"you,omitempty"`
}

// Tried is the result when members last tried to reach a waypoint at the addresses of its record.
type Tried struct {
	At  time.Time `json:"at"`
	Yes int       `json:"yes"` // members that have reached it
	Of  int       `json:"of"`  // members that have tried
	// By lists the members that have reached it; if none has, those that have tried.
	By  []string `json:"by"`
	Why string   `json:"why,omitempty"` // why it was not reached, in one member's words
}
