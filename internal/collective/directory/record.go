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

// What a record may hold. It must stay small: each change of one goes to every member.
const (
	MaxPayload   = 2 << 10             // bytes of JSON
	MaxValidity  = 62 * 24 * time.Hour // from Issued to Expires
	maxAddresses = 8
	maxWords     = 8 // of roles, and of kinds
	maxWord      = 32
)

// Roles of members. A record may have others, of later versions.
const (
	RoleClient      = "client"
	RoleWaypoint    = "waypoint"
	RoleCoordinator = "coordinator"
)

// Record is what a member says of itself.
type Record struct {
	Collective string `json:"collective"`
	Name       string `json:"name"`
	// Sequence grows with every record of the member, see NextSequence.
	Sequence uint64    `json:"sequence"`
	Issued   time.Time `json:"issued"` // to the second, as Expires
	Expires  time.Time `json:"expires"`

	// Addresses and Port are where sessions reach the member. A member that only is a client has none.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Port      uint16       `json:"port,omitempty"`
	// Punch says that what stands before it lets in only what it has sent to: whoever wants a session has
	// a coordinator tell it first where from.
	Punch bool `json:"punch,omitempty"`

	Roles    []string     `json:"roles,omitempty"`
	Kinds    []string     `json:"kinds,omitempty"`    // of detours that it offers: words of session/wire
	Capacity uint64       `json:"capacity,omitempty"` // bit/s that it gives to others; 0: not said
	Region   string       `json:"region,omitempty"`   // a word that members of a region agree on
	AS       uint32       `json:"as,omitempty"`       // number of its autonomous system; 0: not said
	Key      WireGuardKey `json:"wireguard,omitzero"` // zero: none
	Subnet   netip.Prefix `json:"subnet,omitzero"`    // in the collective's VPN, as in its certificate; zero: none
}

// IsWaypoint says whether sessions to the member can be had.
func (r *Record) IsWaypoint() bool {
	return slices.Contains(r.Roles, RoleWaypoint) && len(r.Addresses) > 0
}

// WireGuardKey is a public key of WireGuard, written as its own tools do.
type WireGuardKey [32]byte

func (k WireGuardKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// IsZero says whether there is no key.
func (k WireGuardKey) IsZero() bool { return k == WireGuardKey{} }

// MarshalText is String.
func (k WireGuardKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what String writes.
func (k *WireGuardKey) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil || len(b) != len(k) {
		return fmt.Errorf("%.60q is not a WireGuard key", text)
	}
	*k = WireGuardKey(b)
	return nil
}

// parseRecord reads a payload. Keys that it does not know are of later versions.
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

// check says what of a record makes no sense, whoever signed it.
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

// SameButTime says whether nothing but the time has changed: the member has only renewed its record.
func (r Record) SameButTime(other Record) bool {
	return r.Collective == other.Collective && r.Name == other.Name && r.Port == other.Port && r.Punch == other.Punch &&
		slices.Equal(r.Addresses, other.Addresses) && slices.Equal(r.Roles, other.Roles) && slices.Equal(r.Kinds, other.Kinds) &&
		r.Capacity == other.Capacity && r.Region == other.Region && r.AS == other.AS && r.Key == other.Key && r.Subnet == other.Subnet
}
