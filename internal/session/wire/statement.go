package wire

import (
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"time"
)

// SessionID identifies a session. It is random, so it is unique among the sessions of all
// waypoints.
type SessionID [16]byte

func (id SessionID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether the ID is unset.
func (id SessionID) IsZero() bool { return id == SessionID{} }

// MarshalText returns the ID as String does.
func (id SessionID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText parses an ID as formatted by String.
func (id *SessionID) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(id)) {
		return fmt.Errorf("a session is 32 hexadecimal digits, not %q", text)
	}
	if _, err := hex.Decode(id[:], text); err != nil {
		return fmt.Errorf("session %q: %w", text, err)
	}
	return nil
}

// statementPurpose keeps the signature of a statement from being valid for anything else.
const statementPurpose = "dcol session 1\n"

// MaxClockOff bounds the difference between the time in a statement and the waypoint's clock. It
// prevents the use of a statement on another day. It can be wide, because it need not distinguish
// sessions within an hour.
const MaxClockOff = time.Hour

// Statement is signed by a member at the beginning of a session. With it the member takes
// responsibility for this session with this waypoint, and for its traffic.
type Statement struct {
	Collective string
	Member     string
	Serial     string // of the member's certificate
	Waypoint   string
	Session    SessionID
	Time       time.Time // by the member's clock, in whole milliseconds
}

// Message returns the bytes to sign: a line with the purpose, followed by an array of four strings,
// the session's bytes, and the Unix time in milliseconds in deterministic CBOR (RFC 8949, 4.2.1).
func (s Statement) Message() []byte {
	payload, err := encMode.Marshal([]any{s.Collective, s.Member, s.Serial, s.Waypoint, s.Session[:], s.Time.UnixMilli()})
	if err != nil {
		panic(fmt.Sprintf("wire: a statement cannot be encoded: %v", err)) // cannot happen: it holds only plain types
	}
	return append([]byte(statementPurpose), payload...)
}

// SignedBy reports whether signature is the key owner's signature of the statement.
func (s Statement) SignedBy(key ed25519.PublicKey, signature []byte) bool {
	return len(key) == ed25519.PublicKeySize && len(signature) == ed25519.SignatureSize && ed25519.Verify(key, s.Message(), signature)
}

// Proof is a statement with the member's signature and certificates, which others can verify.
type Proof struct {
	Statement
	Signature []byte
	Chain     [][]byte // DER, the member's own first
}

// Attestation is the client's first message after the greetings. It contains those parts of the
// statement that the waypoint does not know.
type Attestation struct {
	Time      time.Time
	Signature []byte
}
