package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// TunnelRequest requests detours of a kind that is set up once for all servers: every kind except
// Mapped. It is for the session's source address. Repeating it renews the grant.
type TunnelRequest struct {
	ID        uint64
	Kind      Kind
	Local     netip.Addr     // source address of the client's packets, from which the waypoint detects a NAT; may be absent
	PublicKey []byte         // of the client's end of the tunnel, 32 bytes; absent if the kind has none
	Avoid     []netip.Prefix // networks in use at the client, from which it accepts no address
	// Port is the UDP source port of the client's end of the tunnel, or 0 if unknown. A waypoint
	// whose NAT only lets in packets from addresses it has sent to sends a packet there.
	Port uint16
}

// TunnelGrant is the positive answer to a TunnelRequest. The fields that are set depend on the
// kind.
type TunnelGrant struct {
	ID     uint64
	Kind   Kind
	Lease  time.Duration
	Client netip.Addr // the session's source address as the waypoint sees it
	// Key authenticates in-band SYNs, 16 bytes. If absent, SYNs need no authentication.
	Key []byte
	// ClientPort is set if no NAT changes the client's address and ports, so that Key also covers
	// the port.
	ClientPort bool
	PublicKey  []byte         // of the waypoint's end of the tunnel, 32 bytes
	Port       uint16         // UDP port of the waypoint's end of the tunnel; 0: none
	Addresses  []netip.Prefix // the client's addresses in the tunnel, with the length of their subnets
	MTU        uint16         // of the tunnel, in bytes; 0: none
}

const (
	publicKeySize = 32
	keySize       = 16
	maxAvoid      = 32
	maxAddresses  = 8
)

type (
	tunnelRequestBody struct {
		ID        uint64   `cbor:"1,keyasint"`
		Kind      Kind     `cbor:"2,keyasint"`
		Local     []byte   `cbor:"3,keyasint,omitempty"`
		PublicKey []byte   `cbor:"4,keyasint,omitempty"`
		Avoid     [][]byte `cbor:"5,keyasint,omitempty"`
		Port      uint16   `cbor:"6,keyasint,omitempty"`
	}
	tunnelGrantBody struct {
		ID         uint64   `cbor:"1,keyasint"`
		Kind       Kind     `cbor:"2,keyasint"`
		Lease      uint64   `cbor:"3,keyasint"` // ms
		Client     []byte   `cbor:"4,keyasint"`
		Key        []byte   `cbor:"5,keyasint,omitempty"`
		ClientPort bool     `cbor:"6,keyasint,omitempty"`
		PublicKey  []byte   `cbor:"7,keyasint,omitempty"`
		Port       uint16   `cbor:"8,keyasint,omitempty"`
		Addresses  [][]byte `cbor:"9,keyasint,omitempty"`
		MTU        uint16   `cbor:"10,keyasint,omitempty"`
	}
)

func (m TunnelRequest) body() (any, error) {
	b := tunnelRequestBody{ID: m.ID, Kind: m.Kind, PublicKey: m.PublicKey, Port: m.Port}
	if err := b.check(len(m.Avoid)); err != nil {
		return nil, err
	}
	var err error
	if m.Local.IsValid() {
		if b.Local, err = appendAddr(nil, m.Local); err != nil {
			return nil, err
		}
	}
	for _, p := range m.Avoid {
		// Only the network part counts, so that each network has one encoding.
		network, err := encodePrefix(p.Masked())
		if err != nil {
			return nil, err
		}
		b.Avoid = append(b.Avoid, network)
	}
	return b, nil
}

func (b tunnelRequestBody) message() (Message, error) {
	if err := b.check(len(b.Avoid)); err != nil {
		return nil, err
	}
	m := TunnelRequest{ID: b.ID, Kind: b.Kind, PublicKey: present(b.PublicKey), Port: b.Port}
	var err error
	if len(b.Local) > 0 {
		if m.Local, err = parseAddr(b.Local); err != nil {
			return nil, err
		}
	}
	for _, network := range b.Avoid {
		p, err := parsePrefix(network)
		if err != nil {
			return nil, err
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("network %v has bits after its length", p)
		}
		m.Avoid = append(m.Avoid, p)
	}
	return m, nil
}

func (m TunnelGrant) body() (any, error) {
	b := tunnelGrantBody{
		ID: m.ID, Kind: m.Kind, Key: m.Key, ClientPort: m.ClientPort,
		PublicKey: m.PublicKey, Port: m.Port, MTU: m.MTU,
	}
	if err := b.check(len(m.Addresses)); err != nil {
		return nil, err
	}
	var err error
	if b.Lease, err = toMillis(m.Lease); err != nil {
		return nil, err
	}
	if b.Client, err = appendAddr(nil, m.Client); err != nil {
		return nil, err
	}
	for _, a := range m.Addresses {
		address, err := encodePrefix(a)
		if err != nil {
			return nil, err
		}
		b.Addresses = append(b.Addresses, address)
	}
	return b, nil
}

func (b tunnelGrantBody) message() (Message, error) {
	if err := b.check(len(b.Addresses)); err != nil {
		return nil, err
	}
	m := TunnelGrant{
		ID: b.ID, Kind: b.Kind, Key: present(b.Key), ClientPort: b.ClientPort,
		PublicKey: present(b.PublicKey), Port: b.Port, MTU: b.MTU,
	}
	var err error
	if m.Lease, err = fromMillis(b.Lease); err != nil {
		return nil, err
	}
	if m.Client, err = parseAddr(b.Client); err != nil {
		return nil, err
	}
	for _, address := range b.Addresses {
		a, err := parsePrefix(address)
		if err != nil {
			return nil, err
		}
		m.Addresses = append(m.Addresses, a)
	}
	return m, nil
}

func (b tunnelRequestBody) check(avoid int) error {
	return errors.Join(
		checkKind(b.Kind),
		checkBytes("public key", b.PublicKey, publicKeySize),
		checkCount("networks to avoid", avoid, maxAvoid),
	)
}

func (b tunnelGrantBody) check(addresses int) error {
	return errors.Join(
		checkKind(b.Kind),
		checkBytes("key", b.Key, keySize),
		checkBytes("public key", b.PublicKey, publicKeySize),
		checkCount("addresses", addresses, maxAddresses),
	)
}

func checkKind(k Kind) error {
	if k == 0 {
		return errors.New("a tunnel of no kind")
	}
	return nil
}

// checkBytes checks a field that may be absent.
func checkBytes(what string, b []byte, size int) error {
	if len(b) != 0 && len(b) != size {
		return fmt.Errorf("a %s of %d bytes, it has %d", what, len(b), size)
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
