package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

func (m TunnelRequest) body() (Type, body) {
	b := &tunnelRequestBody{ID: m.ID, Kind: m.Kind, Local: address(m.Local), PublicKey: m.PublicKey, Port: m.Port, From: address(m.From), To: address(m.To)}
	for _, p := range m.Avoid {
		// Only the network part counts, so that each network has one encoding.
		b.Avoid = append(b.Avoid, prefix(p.Masked()))
	}
	for _, x := range m.Incoming {
		b.Incoming = append(b.Incoming, incomingBody(x))
	}
	return TypeTunnelRequest, b
}

func (b *tunnelRequestBody) check() error {
	for _, p := range b.Avoid {
		if network := netip.Prefix(p); !network.IsValid() || network != network.Masked() {
			return fmt.Errorf("network %v is invalid, or has bits after its length", network)
		}
	}
	return errors.Join(
		required("kind", b.Kind),
		checkSize("public key", b.PublicKey, publicKeySize),
		checkCount("networks to avoid", len(b.Avoid), maxAvoid),
		b.checkIncoming(),
	)
}

func (b *tunnelRequestBody) checkIncoming() error {
	if len(b.Incoming) == 0 {
		return nil
	}
	errs := []error{checkCount("ports for incoming connections", len(b.Incoming), MostIncoming), required("port of the client's relay", b.Port)}
	for i, x := range b.Incoming {
		errs = append(errs, required("port for incoming connections", x.Port))
		if len(x.Cookie) != cookieSize {
			errs = append(errs, fmt.Errorf("the cookie has %d bytes, and must have %d", len(x.Cookie), cookieSize))
		}
		if slices.ContainsFunc(b.Incoming[:i], func(other incomingBody) bool { return other.Port == x.Port }) {
			errs = append(errs, fmt.Errorf("port %d twice", x.Port))
		}
	}
	return errors.Join(errs...)
}

func (b *tunnelRequestBody) message() Message {
	m := TunnelRequest{
		ID: b.ID, Kind: b.Kind, Local: netip.Addr(b.Local), PublicKey: present(b.PublicKey), Port: b.Port, From: netip.Addr(b.From), To: netip.Addr(b.To),
	}
	for _, p := range b.Avoid {
		m.Avoid = append(m.Avoid, netip.Prefix(p))
	}
	for _, x := range b.Incoming {
		m.Incoming = append(m.Incoming, Incoming(x))
	}
	return m
}

func (m TunnelGrant) body() (Type, body) {
	b := &tunnelGrantBody{
		ID: m.ID, Kind: m.Kind, Lease: millis(m.Lease), Client: address(m.Client), Key: m.Key, ClientPort: m.ClientPort,
		PublicKey: m.PublicKey, Port: m.Port, MTU: m.MTU, Cookie: m.Cookie, From: address(m.From), At: address(m.At),
	}
	for _, a := range m.Addresses {
		b.Addresses = append(b.Addresses, prefix(a))
	}
	for _, x := range m.Incoming {
		b.Incoming = append(b.Incoming, incomingGrantBody(x))
	}
	return TypeTunnelGrant, b
}

func (b *tunnelGrantBody) check() error {
	for _, p := range b.Addresses {
		if !netip.Prefix(p).IsValid() {
			return errors.New("an address is missing")
		}
	}
	for _, x := range b.Incoming {
		if x.Port == 0 {
			return errors.New("a port for incoming connections is missing")
		}
	}
	return errors.Join(
		required("kind", b.Kind),
		required("client", b.Client),
		checkSize("key", b.Key, keySize),
		checkSize("public key", b.PublicKey, publicKeySize),
		checkSize("cookie", b.Cookie, cookieSize),
		checkCount("addresses", len(b.Addresses), maxAddresses),
		checkCount("ports for incoming connections", len(b.Incoming), MostIncoming),
	)
}

func (b *tunnelGrantBody) message() Message {
	m := TunnelGrant{
		ID: b.ID, Kind: b.Kind, Lease: time.Duration(b.Lease), Client: netip.Addr(b.Client), Key: present(b.Key), ClientPort: b.ClientPort,
		PublicKey: present(b.PublicKey), Port: b.Port, MTU: b.MTU, Cookie: present(b.Cookie), From: netip.Addr(b.From), At: netip.Addr(b.At),
	}
	for _, a := range b.Addresses {
		m.Addresses = append(m.Addresses, netip.Prefix(a))
	}
	for _, x := range b.Incoming {
		m.Incoming = append(m.Incoming, IncomingGrant(x))
	}
	return m
}
