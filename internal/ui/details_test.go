package ui

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

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
