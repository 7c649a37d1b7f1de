package portmap

import (
	"context"
	"encoding/binary"
	"net/netip"
	"time"
)

// natPMP is a gateway that speaks NAT-PMP. It supports IPv4 only.
type natPMP struct{ network Network }

const (
	pmpVersion = 0

	pmpAddress = 0
	pmpMapUDP  = 1
	pmpMapTCP  = 2
)

// pmpResponse is a response, of either kind (RFC 6886, 3.2 and 3.3).
type pmpResponse struct {
	op                 byte
	epoch              uint32
	address            netip.Addr // of pmpAddress
	internal, external uint16     // of the others
	lifetime           time.Duration
}

func (m *natPMP) String() string { return "NAT-PMP" }

func (m *natPMP) externalAddress(ctx context.Context) (netip.Addr, error) {
	r, err := m.request(ctx, []byte{pmpVersion, pmpAddress}, func(r pmpResponse) bool { return r.op == pmpAddress })
	return r.address, err
}

func (m *natPMP) open(ctx context.Context, w Want, proposed uint16) (granted, error) {
	addr, err := m.externalAddress(ctx)
	if err != nil {
		return granted{}, err
	}
	r, err := m.mapping(ctx, w, proposed, lifetime)
	if err != nil {
		return granted{}, err
	}
	return granted{
		external: netip.AddrPortFrom(addr, r.external), lifetime: max(r.lifetime, time.Second), epoch: r.epoch, timed: true,
	}, nil
}

// close requests a lifetime of zero and no port (RFC 6886, 3.4).
func (m *natPMP) close(ctx context.Context, w Want, _ uint16) error {
	_, err := m.mapping(ctx, w, 0, 0)
	return err
}

func (m *natPMP) mapping(ctx context.Context, w Want, external uint16, lifetime time.Duration) (pmpResponse, error) {
	op := byte(pmpMapUDP)
	if w.Protocol == TCP {
		op = pmpMapTCP
	}
	b := []byte{pmpVersion, op, 0, 0}
	b = binary.BigEndian.AppendUint16(b, w.Port)
	b = binary.BigEndian.AppendUint16(b, external)
	b = binary.BigEndian.AppendUint32(b, uint32(lifetime/time.Second))
	return m.request(ctx, b, func(r pmpResponse) bool { return r.op == op && r.internal == w.Port })
}

func (m *natPMP) request(ctx context.Context, b []byte, ours func(pmpResponse) bool) (pmpResponse, error) {
	var r pmpResponse
	err := exchange(ctx, m.network, b, func(b []byte) (err error) {
		if r, err = parsePMP(b); err == nil && !ours(r) {
			err = errOther
		}
		return err
	})
	return r, err
}

// parsePMP decodes a response. It returns a refusal as an error.
func parsePMP(b []byte) (pmpResponse, error) {
	var r pmpResponse
	if len(b) < 8 || len(b) > 16 || b[0] != pmpVersion || b[1]&opResponse == 0 {
		return r, errOther
	}
	r.op, r.epoch = b[1]&^opResponse, binary.BigEndian.Uint32(b[4:])
	// A refusal may be shorter.
	if code := binary.BigEndian.Uint16(b[2:]); code != 0 {
		return r, refusedWith("NAT-PMP", int(code), pmpResults)
	}
	switch {
	case r.op == pmpAddress && len(b) == 12:
		r.address = netip.AddrFrom4([4]byte(b[8:]))
	case (r.op == pmpMapUDP || r.op == pmpMapTCP) && len(b) == 16:
		r.internal, r.external = binary.BigEndian.Uint16(b[8:]), binary.BigEndian.Uint16(b[10:])
		r.lifetime = seconds(binary.BigEndian.Uint32(b[12:]))
	default:
		return r, errOther
	}
	return r, nil
}

// pmpResults describes the result codes (RFC 6886, 3.5).
var pmpResults = []string{
	1: "it speaks another version", 2: "not allowed", 3: "it is not connected to the Internet",
	4: "it has no room for more ports", 5: "it does not understand the request",
}
