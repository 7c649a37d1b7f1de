package wire

import (
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// SessionID is what a waypoint calls a session. It is random, so that no two sessions of any waypoint
// ever have the same.
type SessionID [16]byte

func (id SessionID) String() string { return hex.EncodeToString(id[:]) }

// IsZero tells whether it is that of no session.
func (id SessionID) IsZero() bool { return id == SessionID{} }

// MarshalText is String.
func (id SessionID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what String wrote.
func (id *SessionID) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(id)) {
		return fmt.Errorf("a session is 32 hexadecimal digits, not %q", text)
	}
	if _, err := hex.Decode(id[:], text); err != nil {
		return fmt.Errorf("session %q: %w", text, err)
	}
	return nil
}

// parseSessionID is for a field that may be absent.
func parseSessionID(b []byte) (id SessionID, err error) {
	if len(b) != 0 && len(b) != len(id) {
		return id, fmt.Errorf("a session's name of %d bytes", len(b))
	}
	copy(id[:], b)
	return id, nil
}

// statementPurpose keeps a signature over a statement from being good for anything else.
const statementPurpose = "dcol session 1\n"

// MaxClockOff is how far the time in a statement may be from the waypoint's. A statement of another day
// proves nothing of a session now; it is wide, as it need not tell one hour's sessions apart.
const MaxClockOff = time.Hour

// Statement is what a member says at the beginning of a session: this one, with this waypoint, is mine,
// and so is what I cause through it.
type Statement struct {
	Collective string
	Member     string
	Serial     string // of the member's certificate
	Waypoint   string
	Session    SessionID
	Time       time.Time // by the member's clock, in whole milliseconds
}

// Message is what is signed: a line that says what for, and after it, in CBOR's one deterministic form (RFC 8949, 4.2.1) an array of four
// strings, the session's bytes, and the Unix time in milliseconds.
func (s Statement) Message() []byte {
	payload, err := encMode.Marshal([]any{s.Collective, s.Member, s.Serial, s.Waypoint, s.Session[:], s.Time.UnixMilli()})
	if err != nil {
		panic(fmt.Sprintf("wire: a statement cannot be encoded: %v", err)) // it holds only plain types
	}
	return append([]byte(statementPurpose), payload...)
}

// SignedBy says whether the key's owner has signed the statement.
func (s Statement) SignedBy(key ed25519.PublicKey, signature []byte) bool {
	return len(key) == ed25519.PublicKeySize && len(signature) == ed25519.SignatureSize && ed25519.Verify(key, s.Message(), signature)
}

// Proof is a statement with the member's signature and its certificates: what convinces others.
type Proof struct {
	Statement
	Signature []byte
	Chain     [][]byte // DER, the member's own first
}

// Attestation is the client's first message after the greetings: the statement, of which the waypoint
// knows everything else.
type Attestation struct {
	Time      time.Time
	Signature []byte
}

type attestationBody struct { // no key 1, which is an id elsewhere
	Time      int64  `cbor:"2,keyasint"` // Unix, ms
	Signature []byte `cbor:"3,keyasint"`
}

func (Attestation) messageType() Type { return TypeAttestation }

func (m Attestation) body() (any, error) {
	if len(m.Signature) != ed25519.SignatureSize {
		return nil, fmt.Errorf("a signature of %d bytes", len(m.Signature))
	}
	return attestationBody{Time: m.Time.UnixMilli(), Signature: m.Signature}, nil
}

// maxTimeMillis ends what RFC 3339 can write.
const maxTimeMillis = 253402300799999

func (b attestationBody) message() (Message, error) {
	if len(b.Signature) != ed25519.SignatureSize {
		return nil, fmt.Errorf("a signature of %d bytes", len(b.Signature))
	}
	if b.Time < 0 || b.Time > maxTimeMillis {
		return nil, errors.New("a time before 1970 or after 9999")
	}
	return Attestation{Time: time.UnixMilli(b.Time).UTC(), Signature: b.Signature}, nil
}
