package portmap

import (
	"context"
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// pcp is a gateway that speaks PCP.
type pcp struct {
	network Network
	nonce   [12]byte
}

const (
	pcpVersion = 2

	opAnnounce = 0
	opMap      = 1
	opResponse = 0x80

	pcpHeader  = 24 // of requests and of responses (RFC 6887, 7.1 and 7.2)
	pcpMapSize = 36 // what MAP adds (11.1)
)

// pcpMap is the part of a MAP request, and of its response, after the header.
type pcpMap struct {
	nonce    [12]byte
	protocol byte
	internal uint16
	external netip.AddrPort
}

// pcpResponse is the header of a response.
type pcpResponse struct {
	op       byte
	result   byte
	lifetime time.Duration
	epoch    uint32
}

func (p *pcp) String() string { return "PCP" }

// announce sends a request that only asks for an answer (RFC 6887, 14.1).
func (p *pcp) announce(ctx context.Context) error {
	return exchange(ctx, p.network, p.header(opAnnounce, 0), func(b []byte) error {
		r, _, err := parsePCP(b)
		if err == nil && r.op != opAnnounce {
			err = errOther
		}
		return err
	})
}

func (p *pcp) open(ctx context.Context, w Want, proposed uint16) (granted, error) {
	return p.request(ctx, w, proposed, lifetime)
}

func (p *pcp) close(ctx context.Context, w Want, external uint16) error {
	_, err := p.request(ctx, w, external, 0)
	return err
}

func (p *pcp) request(ctx context.Context, w Want, external uint16, lifetime time.Duration) (granted, error) {
	m := pcpMap{nonce: p.nonce, protocol: w.Protocol.number(), internal: w.Port}
	unspecified := netip.IPv6Unspecified()
	if p.network.Own.Is4() {
		unspecified = netip.IPv4Unspecified() // in the requested family (RFC 6887, 11.1)
	}
	m.external = netip.AddrPortFrom(unspecified, external)
	var g granted
	err := exchange(ctx, p.network, m.append(p.header(opMap, lifetime)), func(b []byte) error {
		r, got, err := parsePCP(b)
		if err != nil {
			return err
		}
		if r.op != opMap || got.nonce != m.nonce || got.protocol != m.protocol || got.internal != m.internal {
			return errOther
		}
		g = granted{external: got.external, lifetime: max(r.lifetime, time.Second), epoch: r.epoch, timed: true}
		return nil
	})
	return g, err
}

func (p *pcp) header(op byte, lifetime time.Duration) []byte {
	b := []byte{pcpVersion, op, 0, 0}
	b = binary.BigEndian.AppendUint32(b, uint32(lifetime/time.Second))
	own := p.network.Own.As16()
	return append(b, own[:]...)
}

func (m pcpMap) append(b []byte) []byte {
	b = append(b, m.nonce[:]...)
	b = append(b, m.protocol, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, m.internal)
	b = binary.BigEndian.AppendUint16(b, m.external.Port())
	addr := m.external.Addr().As16()
	return append(b, addr[:]...)
}

// parsePCP decodes a response, including the body of a MAP response. It returns a refusal as an
// error once it is certain that the packet is a response.
func parsePCP(b []byte) (pcpResponse, pcpMap, error) {
	var r pcpResponse
	var m pcpMap
	// A gateway that speaks only NAT-PMP answers in its own format (RFC 6886, 3.5).
	if len(b) >= 8 && b[0] == pmpVersion && b[1]&opResponse != 0 {
		return r, m, &RefusedError{By: "PCP", Code: 1, Why: "it speaks NAT-PMP only"}
	}
	if len(b) < pcpHeader || len(b) > maxAnswer || len(b)%4 != 0 || b[0] != pcpVersion || b[1]&opResponse == 0 {
		return r, m, errOther
	}
	r = pcpResponse{
		op: b[1] &^ opResponse, result: b[3], epoch: binary.BigEndian.Uint32(b[8:]),
		lifetime: seconds(binary.BigEndian.Uint32(b[4:])),
	}
	if r.op == opMap {
		if len(b) < pcpHeader+pcpMapSize {
			return r, m, errOther
		}
		body := b[pcpHeader:]
		copy(m.nonce[:], body)
		m.protocol, m.internal = body[12], binary.BigEndian.Uint16(body[16:])
		addr := netip.AddrFrom16([16]byte(body[20:36])).Unmap()
		m.external = netip.AddrPortFrom(addr, binary.BigEndian.Uint16(body[18:]))
	}
	if r.result != 0 {
		return r, m, refusedWith("PCP", int(r.result), pcpResults)
	}
	return r, m, nil
}

func seconds(n uint32) time.Duration { return min(time.Duration(n)*time.Second, maxLifetime) }

func (p Protocol) number() byte {
	if p == TCP {
		return unix.IPPROTO_TCP
	}
	return unix.IPPROTO_UDP
}

// pcpResults describes the result codes (RFC 6887, 7.4).
var pcpResults = []string{
	1: "it speaks another version", 2: "not allowed", 3: "it does not understand the request", 4: "it opens no ports",
	5: "an option is missing", 6: "it does not understand an option", 7: "it is not connected to the Internet",
	8: "it has no room for more ports", 9: "not for this protocol", 10: "this host has reached its limit of ports",
	11: "it cannot give that port", 12: "another NAT is before it", 13: "too many peers",
}
