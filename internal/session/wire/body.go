package wire

import (
	"errors"
	"fmt"
	"time"

	"github.com/fxamacker/cbor/v2"
)

// The bodies of messages as CBOR maps. Key 1 is the id in every message that has one.
type (
	helloBody struct {
		Version  uint   `cbor:"1,keyasint"`
		Offers   []Kind `cbor:"2,keyasint,omitempty"`
		Lease    uint64 `cbor:"3,keyasint,omitempty"` // ms
		Observed []byte `cbor:"4,keyasint,omitempty"`

		Closed    Code   `cbor:"5,keyasint,omitempty"`
		ClosedFor uint64 `cbor:"6,keyasint,omitempty"` // ms

		Session []byte `cbor:"7,keyasint,omitempty"`
	}
	mapRequestBody struct {
		ID       uint64 `cbor:"1,keyasint"`
		Server   []byte `cbor:"2,keyasint"`
		Proposed uint16 `cbor:"3,keyasint,omitempty"`
	}
	mapGrantBody struct {
		ID     uint64 `cbor:"1,keyasint"`
		Port   uint16 `cbor:"2,keyasint"`
		Lease  uint64 `cbor:"3,keyasint"` // ms
		Client []byte `cbor:"4,keyasint"`
	}
	refusalBody struct {
		ID         uint64 `cbor:"1,keyasint"`
		Code       Code   `cbor:"2,keyasint"`
		Message    string `cbor:"3,keyasint,omitempty"`
		RetryAfter uint64 `cbor:"4,keyasint,omitempty"` // ms
	}
	pingBody struct {
		ID     uint64 `cbor:"1,keyasint"`
		Filler []byte `cbor:"2,keyasint,omitempty"`
	}
	pongBody struct {
		ID       uint64 `cbor:"1,keyasint"`
		Observed []byte `cbor:"2,keyasint"`
	}
	leftBody struct {
		From []byte `cbor:"2,keyasint"`
	}
	idBody struct {
		ID uint64 `cbor:"1,keyasint"`
	}
)

const (
	maxDuration = 366 * 24 * time.Hour
	maxOffers   = 16
	maxArray    = max(maxOffers, maxAvoid, maxAddresses)

	// A QUIC endpoint that has lost its state sends a stateless reset only in answer to packets
	// longer than the reset itself (RFC 9000, 10.3; quic-go: 42 bytes). Idle sessions send only
	// pings, so pings must be that long for a restarted waypoint to be noticed at once.
	pingFiller = 24
)

var encMode, decMode = modes()

func modes() (cbor.EncMode, cbor.DecMode) {
	enc, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		panic(err) // constant options
	}
	dec, err := cbor.DecOptions{
		DupMapKey:        cbor.DupMapKeyEnforcedAPF,
		MaxNestedLevels:  4,
		MaxArrayElements: maxArray,
		MaxMapPairs:      32,
		IndefLength:      cbor.IndefLengthForbidden,
		TagsMd:           cbor.TagsForbidden,
		UTF8:             cbor.UTF8RejectInvalid,
	}.DecMode()
	if err != nil {
		panic(err) // constant options
	}
	return enc, dec
}

func (m Hello) body() (any, error) {
	lease, err := toMillis(m.Lease)
	if err != nil {
		return nil, err
	}
	if err := checkCount("offers", len(m.Offers), maxOffers); err != nil {
		return nil, err
	}
	closedFor, err := toMillis(m.ClosedFor)
	if err != nil {
		return nil, err
	}
	b := helloBody{Version: m.Version, Offers: m.Offers, Lease: lease, Closed: m.Closed, ClosedFor: closedFor}
	if m.Observed.IsValid() {
		if b.Observed, err = encodeEndpoint(m.Observed); err != nil {
			return nil, err
		}
	}
	if !m.Session.IsZero() {
		b.Session = m.Session[:]
	}
	return b, nil
}

func (m MapRequest) body() (any, error) {
	server, err := encodeEndpoint(m.Server)
	return mapRequestBody{ID: m.ID, Server: server, Proposed: m.Proposed}, err
}

func (m MapGrant) body() (any, error) {
	if m.Port == 0 {
		return nil, errors.New("a grant of port 0")
	}
	lease, err := toMillis(m.Lease)
	if err != nil {
		return nil, err
	}
	client, err := appendAddr(nil, m.Client)
	return mapGrantBody{ID: m.ID, Port: m.Port, Lease: lease, Client: client}, err
}

func (m Refusal) body() (any, error) {
	retry, err := toMillis(m.RetryAfter)
	return refusalBody{ID: m.ID, Code: m.Code, Message: cleanText(m.Message), RetryAfter: retry}, err
}

func (m Ping) body() (any, error) {
	return pingBody{ID: m.ID, Filler: make([]byte, pingFiller)}, nil
}

func (m Pong) body() (any, error) {
	observed, err := encodeEndpoint(m.Observed)
	return pongBody{ID: m.ID, Observed: observed}, err
}

func (m Left) body() (any, error) {
	from, err := encodeEndpoint(m.From)
	return leftBody{From: from}, err
}

var errUnknownType = errors.New("unknown message type")

func decodeBody(t Type, data []byte) (Message, error) {
	switch t {
	case TypeHello:
		var b helloBody
		if err := decMode.Unmarshal(data, &b); err != nil {
			return nil, err
		}
		if err := checkCount("offers", len(b.Offers), maxOffers); err != nil {
			return nil, err
		}
		lease, err := fromMillis(b.Lease)
		if err != nil {
			return nil, err
		}
		closedFor, err := fromMillis(b.ClosedFor)
		if err != nil {
			return nil, err
		}
		observed, err := parseOptionalEndpoint(b.Observed)
		if err != nil {
			return nil, err
		}
		session, err := parseSessionID(b.Session)
		return Hello{Version: b.Version, Offers: present(b.Offers), Lease: lease, Observed: observed, Closed: b.Closed, ClosedFor: closedFor, Session: session}, err
	case TypeMapRequest:
		var b mapRequestBody
		if err := decMode.Unmarshal(data, &b); err != nil {
			return nil, err
		}
		server, err := parseEndpoint(b.Server)
		return MapRequest{ID: b.ID, Server: server, Proposed: b.Proposed}, err
	case TypeMapGrant:
		var b mapGrantBody
		if err := decMode.Unmarshal(data, &b); err != nil {
			return nil, err
		}
		if b.Port == 0 {
			return nil, errors.New("a grant of port 0")
		}
		lease, err := fromMillis(b.Lease)
		if err != nil {
			return nil, err
		}
		client, err := parseAddr(b.Client)
		return MapGrant{ID: b.ID, Port: b.Port, Lease: lease, Client: client}, err
	case TypeRefusal:
		var b refusalBody
		if err := decMode.Unmarshal(data, &b); err != nil {
			return nil, err
		}
		retry, err := fromMillis(b.RetryAfter)
		return Refusal{ID: b.ID, Code: b.Code, Message: cleanText(b.Message), RetryAfter: retry}, err
	case TypePing:
		var b pingBody
		err := decMode.Unmarshal(data, &b)
		return Ping{ID: b.ID}, err
	case TypePong:
		var b pongBody
		if err := decMode.Unmarshal(data, &b); err != nil {
			return nil, err
		}
		observed, err := parseEndpoint(b.Observed)
		return Pong{ID: b.ID, Observed: observed}, err
	case TypeTunnelRequest:
		var b tunnelRequestBody
		if err := decMode.Unmarshal(data, &b); err != nil {
			return nil, err
		}
		return b.message()
	case TypeTunnelGrant:
		var b tunnelGrantBody
		if err := decMode.Unmarshal(data, &b); err != nil {
			return nil, err
		}
		return b.message()
	case TypeAttestation:
		var b attestationBody
		if err := decMode.Unmarshal(data, &b); err != nil {
			return nil, err
		}
		return b.message()
	case TypeLeft:
		var b leftBody
		if err := decMode.Unmarshal(data, &b); err != nil {
			return nil, err
		}
		from, err := parseEndpoint(b.From)
		return Left{From: from}, err
	}
	return nil, errUnknownType
}

// idOf returns the id of a message that cannot be decoded otherwise, or 0 if there is none.
func idOf(t Type, data []byte) uint64 {
	if t == TypeHello { // its key 1 is the version
		return 0
	}
	var b idBody
	if err := decMode.Unmarshal(data, &b); err != nil {
		return 0
	}
	return b.ID
}

// Span limits d to what messages can carry: positive, and at most a year.
func Span(d time.Duration) time.Duration { return min(max(d, time.Millisecond), maxDuration) }

func toMillis(d time.Duration) (uint64, error) {
	if d < 0 || d > maxDuration {
		return 0, fmt.Errorf("a duration of %v", d)
	}
	return uint64(d / time.Millisecond), nil
}

func fromMillis(ms uint64) (time.Duration, error) {
	if ms > uint64(maxDuration/time.Millisecond) {
		return 0, fmt.Errorf("a duration of %d ms", ms)
	}
	return time.Duration(ms) * time.Millisecond, nil
}
