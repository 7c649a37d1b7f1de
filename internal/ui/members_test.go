package ui

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

func TestMembers(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	yes, no := true, false
	at := func(texts ...string) (list []netip.Addr) {
		for _, s := range texts {
			list = append(list, netip.MustParseAddr(s))
		}
		return list
	}
	both := []string{"client", "waypoint"}
	all := api.Members{Collective: "friends", Self: "hub", Members: []api.Member{
		{Name: "alice", Roles: both[:1], CertificateUntil: now.Add(6 * 24 * time.Hour), RecordIssued: now.Add(-time.Hour)},
		{Name: "bob", Roles: both, Kinds: []string{"in-band", "mapped"}, Addresses: at("192.0.2.7", "2001:db8::7"), Region: "eu", Capacity: 1e8, Used: true,
			Reachable: &yes, Reach: &api.Reach{Yes: 3, Of: 4}, CertificateUntil: now.Add(72 * time.Hour), RecordIssued: now.Add(-5 * time.Minute)},
		{Name: "carol", Roles: both, Kinds: []string{"wireguard"}, Addresses: at("192.0.2.8"), Reachable: &no, Reach: &api.Reach{Of: 2, Why: "no answer"},
			CertificateUntil: now.Add(-time.Hour), RecordIssued: now.Add(-8 * 24 * time.Hour)},
		{Name: "dave"},
		{Name: "erin", Roles: both[1:], Addresses: at("192.0.2.9"), Reachable: &yes, CertificateUntil: now.Add(time.Hour), RecordIssued: now},
		{Name: "frank", Roles: both[1:], Addresses: at("192.0.2.10"), Reachable: &no, CertificateUntil: now.Add(time.Hour), RecordIssued: now},
		{Name: "hub", Roles: append(both[:2:2], "coordinator"), Addresses: at("192.0.2.1"), CertificateUntil: now.Add(time.Hour), RecordIssued: now},
		{Name: "mallory", Expelled: now.Add(-48 * time.Hour), Why: "sent spam"},
	}}
	var b strings.Builder
	if err := Members(&b, all, now); err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n")
	if err := Members(&b, api.Members{Collective: "friends", Self: "alice", Behind: true, Members: all.Members[:1]}, now); err != nil {
		t.Fatal(err)
	}
	compare(t, "testdata/members.txt", b.String())
}
