package ui

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// A converted connection is shown under the server that the program means, with the converter.
func TestConvertedConnection(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	conn := api.Connection{
		Token: "7cc023a1", Since: now, Remote: netip.MustParseAddrPort("192.0.2.7:5124"),
		Server: netip.MustParseAddrPort("203.0.113.5:80"), Converter: "bob",
	}
	const want = "to 203.0.113.5:80 through the converter of bob (192.0.2.7:5124),"
	var details, why strings.Builder
	if err := Details(&details, api.Status{Client: &api.Using{Connections: []api.Connection{conn}}}, now); err != nil {
		t.Fatal(err)
	}
	if text := details.String(); strings.Count(text, want) != 1 {
		t.Errorf("the details are\n%s", text)
	}
	x := api.Why{Connections: []api.Connection{conn}, Closed: []api.ClosedConnection{{Connection: conn, Ended: now}}}
	if err := Why(&why, x, now); err != nil {
		t.Fatal(err)
	}
	if text := why.String(); strings.Count(text, want) != 2 {
		t.Errorf("the explanation is\n%s", text)
	}
}

// If there are many connections, the status shows the busiest, and the details all of them.
func TestStatusOfManyConnections(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	using := &api.Using{}
	for i := range 15 {
		using.Connections = append(using.Connections, api.Connection{
			Token: fmt.Sprint(i), Since: now, Traffic: "bulk", Remote: netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), uint16(1000+i)),
			Subflows: []api.Subflow{{Kind: "direct", State: api.SubflowUp, ReceiveRate: float64(i), RTT: 9, RTTAge: 130, MinRTT: 7}},
		})
	}
	var glance, details strings.Builder
	if err := Status(&glance, api.Status{Client: using}, now); err != nil {
		t.Fatal(err)
	}
	if err := Details(&details, api.Status{Client: using}, now); err != nil {
		t.Fatal(err)
	}
	if text := glance.String(); strings.Count(text, "direct  up") != 10 || strings.Contains(text, ":1004,") || !strings.Contains(text, ":1014,") ||
		!strings.Contains(text, "and 5 connections with lower rates: dcol status -d") {
		t.Errorf("a glance is\n%s", text)
	}
	if text := details.String(); strings.Count(text, "traffic: bulk") != 15 || !strings.Contains(text, "2 min    7.0 ms") || strings.Contains(text, "-d") {
		t.Errorf("the details are\n%s", text)
	}
}
