package gateway

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	codec "github.com/detour-collective/dcol/internal/packet"
)

// A connection with MPTCP's version 0 passes, and shows nothing: a server that speaks version 1 does not accept it.
func TestOldVersionPasses(t *testing.T) {
	t.Parallel()
	h := newHome(t, Want{Mode: choice.Always, Converters: true})
	from, server := netip.MustParseAddrPort("10.1.0.2:40000"), netip.AddrPortFrom(netip.MustParseAddr("10.2.0.2"), speaksPort)
	old := codec.Capable{Flags: codec.CapableHMAC, Keys: 1, Sender: 9}.Option()
	syn := codec.Segment(from, server, codec.TCP{Seq: 1, Flags: codec.SYN, Window: 0xffff, Options: []codec.Option{old}}, nil)
	if err := syn.Seal(); err != nil {
		t.Fatal(err)
	}
	var c net.PacketConn
	h.host.Must(t, func() (err error) { c, err = net.ListenPacket("ip4:tcp", from.Addr().String()); return err })
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.WriteTo(syn.TCP.Append(nil), &net.IPAddr{IP: server.Addr().AsSlice()}); err != nil {
		t.Fatal(err)
	}
	for answered, b := false, make([]byte, 100); !answered; {
		n, _, err := c.ReadFrom(b)
		if err != nil {
			t.Fatalf("no answer: %v", err)
		}
		answered = n >= 20 && codec.Flags(b[13]).Has(codec.SYN|codec.ACK)
	}
	for _, set := range []string{"plain4", "speaks4"} {
		if list := h.router.Output(t, "nft", "list", "set", "inet", table.Name, set); strings.Contains(list, server.Addr().String()) {
			t.Errorf("the gateway has learned something: %s", list)
		}
	}
	if n := strings.Count(h.router.Output(t, "nft", "list", "chain", "inet", table.Name, divert), "packets 0"); n != 2 {
		t.Errorf("the connection was taken: %s", h.router.Output(t, "nft", "list", "ruleset"))
	}
}
