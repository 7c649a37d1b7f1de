package wire

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Type identifies a message's type on the wire.
type Type uint8

// The message types. Numbers are never reused.
const (
	TypeHello         Type = 1
	TypeMapRequest    Type = 2
	TypeMapGrant      Type = 3
	TypeRefusal       Type = 4
	TypePing          Type = 5
	TypePong          Type = 6
	TypeTunnelRequest Type = 7
	TypeTunnelGrant   Type = 8
	TypeAttestation   Type = 9
	TypeLeft          Type = 10
)

var types = map[Type]struct {
	name string
	body func() body
}{
	TypeHello:         {"hello", func() body { return &helloBody{} }},
	TypeMapRequest:    {"map request", func() body { return &mapRequestBody{} }},
	TypeMapGrant:      {"map grant", func() body { return &mapGrantBody{} }},
	TypeRefusal:       {"refusal", func() body { return &refusalBody{} }},
	TypePing:          {"ping", func() body { return &pingBody{} }},
	TypePong:          {"pong", func() body { return &pongBody{} }},
	TypeTunnelRequest: {"tunnel request", func() body { return &tunnelRequestBody{} }},
	TypeTunnelGrant:   {"tunnel grant", func() body { return &tunnelGrantBody{} }},
	TypeAttestation:   {"attestation", func() body { return &attestationBody{} }},
	TypeLeft:          {"left", func() body { return &leftBody{} }},
}

func (t Type) String() string {
	if known, ok := types[t]; ok {
		return known.name
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// body is the form in which a message is encoded, as a CBOR map.
type body interface {
	// check returns an error if a field is wrong. It is called before encoding and after decoding. Fields of some types
	// were already checked then.
	check() error
	message() Message
}

// Key 1 is the id, in every message that has an id.
type (
	helloBody struct {
		Version   uint     `cbor:"1,keyasint"`
		Offers    []Kind   `cbor:"2,keyasint,omitempty"`
		Lease     millis   `cbor:"3,keyasint,omitzero"`
		Observed  endpoint `cbor:"4,keyasint,omitempty"`
		Closed    Code     `cbor:"5,keyasint,omitempty"`
		ClosedFor millis   `cbor:"6,keyasint,omitzero"`
		Session   []byte   `cbor:"7,keyasint,omitempty"`
		LoadedFor millis   `cbor:"8,keyasint,omitzero"`
		Gives     uint64   `cbor:"9,keyasint,omitempty"`
	}
	mapRequestBody struct {
		ID       uint64   `cbor:"1,keyasint"`
		Server   endpoint `cbor:"2,keyasint"`
		Proposed uint16   `cbor:"3,keyasint,omitempty"`
		Sole     bool     `cbor:"4,keyasint,omitempty"`
	}
	mapGrantBody struct {
		ID     uint64  `cbor:"1,keyasint"`
		Port   uint16  `cbor:"2,keyasint"`
		Lease  millis  `cbor:"3,keyasint"`
		Client address `cbor:"4,keyasint"`
	}
	refusalBody struct {
		ID         uint64 `cbor:"1,keyasint"`
		Code       Code   `cbor:"2,keyasint"`
		Message    string `cbor:"3,keyasint,omitempty"`
		RetryAfter millis `cbor:"4,keyasint,omitzero"`
	}
	pingBody struct {
		ID     uint64 `cbor:"1,keyasint"`
		Filler []byte `cbor:"2,keyasint,omitempty"`
	}
	pongBody struct {
		ID       uint64   `cbor:"1,keyasint"`
		Observed endpoint `cbor:"2,keyasint"`
	}
	tunnelRequestBody struct {
		ID        uint64   `cbor:"1,keyasint"`
		Kind      Kind     `cbor:"2,keyasint"`
		Local     address  `cbor:"3,keyasint,omitempty"`
		PublicKey []byte   `cbor:"4,keyasint,omitempty"`
		Avoid     []prefix `cbor:"5,keyasint,omitempty"`
		Port      uint16   `cbor:"6,keyasint,omitempty"`

		Incoming []incomingBody `cbor:"7,keyasint,omitempty"`
		From     address        `cbor:"8,keyasint,omitempty"`
		To       address        `cbor:"9,keyasint,omitempty"`
	}
	incomingBody struct {
		Port   uint16 `cbor:"1,keyasint"`
		Cookie []byte `cbor:"2,keyasint"`
	}
	incomingGrantBody struct {
		Port    uint16 `cbor:"1,keyasint"`
		Refused Code   `cbor:"2,keyasint,omitempty"`
	}
	tunnelGrantBody struct {
		ID         uint64   `cbor:"1,keyasint"`
		Kind       Kind     `cbor:"2,keyasint"`
		Lease      millis   `cbor:"3,keyasint"`
		Client     address  `cbor:"4,keyasint"`
		Key        []byte   `cbor:"5,keyasint,omitempty"`
		ClientPort bool     `cbor:"6,keyasint,omitempty"`
		PublicKey  []byte   `cbor:"7,keyasint,omitempty"`
		Port       uint16   `cbor:"8,keyasint,omitempty"`
		Addresses  []prefix `cbor:"9,keyasint,omitempty"`
		MTU        uint16   `cbor:"10,keyasint,omitempty"`
		Cookie     []byte   `cbor:"11,keyasint,omitempty"`

		Incoming []incomingGrantBody `cbor:"12,keyasint,omitempty"`
		From     address             `cbor:"13,keyasint,omitempty"`
		At       address             `cbor:"14,keyasint,omitempty"`
	}
	attestationBody struct { // without key 1, which is an id elsewhere
		Time      int64  `cbor:"2,keyasint"` // Unix, ms
		Signature []byte `cbor:"3,keyasint"`
	}
	leftBody struct {
		From endpoint `cbor:"2,keyasint"`
	}
	idBody struct {
		ID uint64 `cbor:"1,keyasint"`
	}
)

const (
	maxOffers     = 16
	maxAvoid      = 32
	maxAddresses  = 8
	maxArray      = max(maxOffers, maxAvoid, maxAddresses, MostIncoming)
	publicKeySize = 32
	keySize       = 16
	cookieSize    = 24

	// maxTimeMillis is the latest time that RFC 3339 can represent.
	maxTimeMillis = 253402300799999

	// A QUIC endpoint that has lost its state sends a stateless reset only in answer to packets
	// longer than the reset itself (RFC 9000, 10.3; quic-go: 42 bytes). Idle sessions send only
	// pings, so pings must be that long for a restarted waypoint to be noticed at once.
	pingFiller = 24
)

func (m Hello) body() (Type, body) {
	b := &helloBody{
		Version: m.Version, Offers: m.Offers, Lease: millis(m.Lease), Observed: endpoint(m.Observed),
		Closed: m.Closed, ClosedFor: millis(m.ClosedFor), LoadedFor: millis(m.LoadedFor), Gives: m.LoadedGives,
	}
	if !m.Session.IsZero() {
		b.Session = m.Session[:]
	}
	return TypeHello, b
}

func (b *helloBody) check() error {
	return errors.Join(checkCount("offers", len(b.Offers), maxOffers), checkSize("session's name", b.Session, len(SessionID{})))
}

func (b *helloBody) message() Message {
	m := Hello{
		Version: b.Version, Offers: present(b.Offers), Lease: time.Duration(b.Lease), Observed: netip.AddrPort(b.Observed),
		Closed: b.Closed, ClosedFor: time.Duration(b.ClosedFor), LoadedFor: time.Duration(b.LoadedFor), LoadedGives: b.Gives,
	}
	copy(m.Session[:], b.Session)
	return m
}

func (m MapRequest) body() (Type, body) {
	return TypeMapRequest, &mapRequestBody{ID: m.ID, Server: endpoint(m.Server), Proposed: m.Proposed, Sole: m.Sole}
}

func (b *mapRequestBody) check() error { return required("server", b.Server) }

func (b *mapRequestBody) message() Message {
	return MapRequest{ID: b.ID, Server: netip.AddrPort(b.Server), Proposed: b.Proposed, Sole: b.Sole}
}

func (m MapGrant) body() (Type, body) {
	return TypeMapGrant, &mapGrantBody{ID: m.ID, Port: m.Port, Lease: millis(m.Lease), Client: address(m.Client)}
}

func (b *mapGrantBody) check() error {
	return errors.Join(required("port", b.Port), required("client", b.Client))
}

func (b *mapGrantBody) message() Message {
	return MapGrant{ID: b.ID, Port: b.Port, Lease: time.Duration(b.Lease), Client: netip.Addr(b.Client)}
}

func (m Refusal) body() (Type, body) {
	return TypeRefusal, &refusalBody{ID: m.ID, Code: m.Code, Message: cleanText(m.Message), RetryAfter: millis(m.RetryAfter)}
}

func (b *refusalBody) check() error { return nil }

func (b *refusalBody) message() Message {
	return Refusal{ID: b.ID, Code: b.Code, Message: cleanText(b.Message), RetryAfter: time.Duration(b.RetryAfter)}
}

func (m Ping) body() (Type, body) {
	return TypePing, &pingBody{ID: m.ID, Filler: make([]byte, pingFiller)}
}

func (b *pingBody) check() error { return nil }

func (b *pingBody) message() Message { return Ping{ID: b.ID} }

func (m Pong) body() (Type, body) {
	return TypePong, &pongBody{ID: m.ID, Observed: endpoint(m.Observed)}
}

func (b *pongBody) check() error { return required("address", b.Observed) }

func (b *pongBody) message() Message { return Pong{ID: b.ID, Observed: netip.AddrPort(b.Observed)} }

func (m Attestation) body() (Type, body) {
	return TypeAttestation, &attestationBody{Time: m.Time.UnixMilli(), Signature: m.Signature}
}

func (b *attestationBody) check() error {
	if b.Time < 0 || b.Time > maxTimeMillis {
		return errors.New("the time is before 1970 or after 9999")
	}
	if len(b.Signature) != ed25519.SignatureSize {
		return fmt.Errorf("the signature has %d bytes, and must have %d", len(b.Signature), ed25519.SignatureSize)
	}
	return nil
}

func (b *attestationBody) message() Message {
	return Attestation{Time: time.UnixMilli(b.Time).UTC(), Signature: b.Signature}
}

func (m Left) body() (Type, body) { return TypeLeft, &leftBody{From: endpoint(m.From)} }

func (b *leftBody) check() error { return required("address", b.From) }

func (b *leftBody) message() Message { return Left{From: netip.AddrPort(b.From)} }

// required checks a field that may not be absent.
func required[T comparable](what string, field T) error {
	if field == *new(T) {
		return fmt.Errorf("no %s", what)
	}
	return nil
}

// checkSize checks a field that may be absent.
func checkSize(what string, b []byte, size int) error {
	if len(b) != 0 && len(b) != size {
		return fmt.Errorf("the %s has %d bytes, and must have %d", what, len(b), size)
	}
	return nil
}

func checkCount(what string, n, most int) error {
	if n > most {
		return fmt.Errorf("%d %s, the most is %d", n, what, most)
	}
	return nil
}

// present returns nil for an empty slice, so that absent fields have one form.
func present[E any](s []E) []E {
	if len(s) == 0 {
		return nil
	}
	return s
}
