package coordinator

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/coordinator/gate"
)

// Hosts join while strangers hold more idle connections than there are places: from a few addresses, and one each
// from many.
func TestSlowStrangersGiveWay(t *testing.T) {
	t.Parallel()
	for name, addresses := range map[string]int{"sixteen addresses": gate.MaxStrangers / gate.MaxPerSource, "an address for each": gate.MaxStrangers} {
		t.Run(name, func(t *testing.T) {
			w := runWorld(t)
			at := w.invite(InviteOptions{}).Coordinators[0].Address
			for i := range gate.MaxStrangers + addresses {
				n := i % addresses
				from := netip.MustParseAddr(fmt.Sprintf("127.1.%d.%d", n/200, 1+n%200))
				dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
				conn, err := dialer.DialContext(t.Context(), "tcp", at)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
			}
			if err := w.host("alpha").join(w.invite(InviteOptions{})); err != nil {
				t.Error(err)
			}
		})
	}
}

// Of a member's many connections only the newest few stay open, and others behind its address can still renew.
func TestMembersConnectionsAreBounded(t *testing.T) {
	w := runWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	for _, h := range []*host{alpha, beta} {
		if err := h.join(w.invite(InviteOptions{})); err != nil {
			t.Fatal(err)
		}
	}
	var chain [][]byte
	for block, rest := pem.Decode([]byte(alpha.welcome.Chain)); block != nil; block, rest = pem.Decode(rest) {
		chain = append(chain, block.Bytes)
	}
	config := &tls.Config{
		Certificates:       []tls.Certificate{{Certificate: chain, PrivateKey: alpha.key}},
		InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS13,
	}
	const surplus = 20
	var conns []net.Conn
	for range gate.MaxPerMember + surplus {
		conn, err := tls.Dial("tcp", alpha.welcome.Coordinators[0].Address, config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		// A request without its body: the coordinator waits for that.
		if _, err := conn.Write([]byte("POST /v1/renew HTTP/1.1\r\nHost: hub\r\nContent-Length: 100\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	deadline := time.Now().Add(gate.Patience / 2) // long before the connections end by themselves
	for i, conn := range conns[:surplus] {
		conn.SetReadDeadline(deadline)
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("connection %d of %d is still open", i, len(conns))
		}
	}
	if err := beta.renew(); err != nil {
		t.Errorf("another member: %v", err)
	}
	if err := alpha.renew(); err != nil {
		t.Errorf("the same member: %v", err)
	}
}
