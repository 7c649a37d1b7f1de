package directory

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// Records must stay small, because every change goes to every member.
const (
	MaxPayload   = 2 << 10             // bytes of a record's JSON
	MaxValidity  = 62 * 24 * time.Hour // from Issued to Expires
	maxAddresses = 8                   // in Addresses
	maxWords     = 8                   // in Roles, and in Kinds
	maxWord      = 32                  // characters
)

// Roles of members. Later versions may add others.
const (
	RoleClient      = "client"
	RoleWaypoint    = "waypoint"
	RoleCoordinator = "coordinator"
)

// Record describes a member in its own words.
type Record struct {
	Collective string `json:"collective"`
	Name       string `json:"name"`
	// Sequence grows with every record of the member; see NextSequence.
	Sequence uint64    `json:"sequence"`
	Issued   time.Time `json:"issued"` // in whole seconds, like Expires
	Expires  time.Time `json:"expires"`

	// Addresses and Port are for sessions with the member. A member that is only a client has none.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Port      uint16       `json:"port,omitempty"`
	// Punch means that the member's NAT lets in only packets from addresses that the member has sent to. For a session,
	// a client must first have a coordinator tell the member its address.
	Punch bool `json:"punch,omitempty"`

	Roles    []string     `json:"roles,omitempty"`
	Kinds    []string     `json:"kinds,omitempty"`    // of detours that it offers: names from session/wire
	Capacity uint64       `json:"capacity,omitempty"` // bit/s that it offers to others; 0: not stated
	Region   string       `json:"region,omitempty"`   // a word on which members of a region agree
	AS       uint32       `json:"as,omitempty"`       // number of its autonomous system; 0: not stated
	Key      WireGuardKey `json:"wireguard,omitzero"` // zero: none
	Subnet   netip.Prefix `json:"subnet,omitzero"`    // in the collective's VPN, as in its certificate; zero: none

	// Measured has the member's measurements of waypoints until Issued. It names no destinations.
	Measured []Measurement `json:"measured,omitempty"`
}

// IsWaypoint reports whether the member accepts sessions.
func (r *Record) IsWaypoint() bool {
	return slices.Contains(r.Roles, RoleWaypoint) && len(r.Addresses) > 0
}

// WireGuardKey is a WireGuard public key. Its text is that of WireGuard's tools.
type WireGuardKey [32]byte

func (k WireGuardKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// IsZero reports whether there is no key.
func (k WireGuardKey) IsZero() bool { return k == WireGuardKey{} }

// MarshalText returns the key in base64, as String does.
func (k WireGuardKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText parses a key in base64.
func (k *WireGuardKey) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil || len(b) != len(k) {
		return fmt.Errorf("%.60q is not a WireGuard key", text)
	}
	*k = WireGuardKey(b)
	return nil
}

// parseRecord parses a payload. It ignores unknown keys, which are of later versions.
func parseRecord(payload []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(payload, &r); err != nil {
		return Record{}, err
	}
	if err := r.check(); err != nil {
		return Record{}, err
	}
	return r, nil
}

// check returns an error if a record's content is invalid.
func (r *Record) check() error {
	if err := collective.CheckName(r.Name); err != nil {
		return err
	}
	if err := collective.CheckCollective(r.Collective); err != nil {
		return err
	}
	if r.Sequence == 0 {
		return errors.New("the sequence number is missing: it must be at least 1")
	}
	if life := r.Expires.Sub(r.Issued); life <= 0 || life > MaxValidity {
		return fmt.Errorf("valid for %v, but at most %v are allowed", life, MaxValidity)
	}
	if err := checkAddresses(r.Addresses); err != nil {
		return err
	}
	if (len(r.Addresses) > 0) != (r.Port != 0) {
		return fmt.Errorf("%d addresses and port %d: a record must have both or neither", len(r.Addresses), r.Port)
	}
	for _, words := range [][]string{r.Roles, r.Kinds} {
		if err := checkWords(words); err != nil {
			return err
		}
	}
	if r.Region != "" && !isWord(r.Region) {
		return fmt.Errorf("the region %.60q must be a word of a-z, 0-9 and '-' with at most %d characters", r.Region, maxWord)
	}
	if err := checkMeasured(r.Measured); err != nil {
		return err
	}
	if s := r.Subnet; s.IsValid() && (s != s.Masked() || s.Addr().Is4In6()) {
		return fmt.Errorf("the subnet %v is invalid", s)
	}
	return nil
}

func checkAddresses(all []netip.Addr) error {
	if len(all) > maxAddresses {
		return fmt.Errorf("%d addresses, but at most %d are allowed", len(all), maxAddresses)
	}
	for i, a := range all {
		switch {
		case !a.IsGlobalUnicast() || a.Is4In6() || a.Zone() != "":
			return fmt.Errorf("other hosts cannot reach the address %v", a)
		case slices.Contains(all[:i], a):
			return fmt.Errorf("the address %v is listed twice", a)
		}
	}
	return nil
}

func checkWords(words []string) error {
	if len(words) > maxWords {
		return fmt.Errorf("%d words in a list, but at most %d are allowed", len(words), maxWords)
	}
	for i, w := range words {
		if !isWord(w) {
			return fmt.Errorf("%.60q must be a word of a-z, 0-9 and '-' with at most %d characters", w, maxWord)
		}
		if slices.Contains(words[:i], w) {
			return fmt.Errorf("%q is listed twice", w)
		}
	}
	return nil
}

func isWord(s string) bool {
	if s == "" || len(s) > maxWord {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// SameButTime reports whether the records differ only in their times and measurements, as after a renewal.
func (r Record) SameButTime(other Record) bool {
	return r.Collective == other.Collective && r.Name == other.Name && r.Port == other.Port && r.Punch == other.Punch &&
		slices.Equal(r.Addresses, other.Addresses) && slices.Equal(r.Roles, other.Roles) && slices.Equal(r.Kinds, other.Kinds) &&
		r.Capacity == other.Capacity && r.Region == other.Region && r.AS == other.AS && r.Key == other.Key && r.Subnet == other.Subnet
}
