package ui

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/printable"
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
			Reachable: &yes, Reach: &api.Reach{Yes: 3, Of: 4}, CertificateUntil: now.Add(72 * time.Hour), RecordIssued: now.Add(-5 * time.Minute), Enforces: &yes},
		{Name: "carol", Roles: both, Kinds: []string{"wireguard"}, Addresses: at("192.0.2.8"), Reachable: &no, Reach: &api.Reach{Of: 2, Why: "no answer"},
			CertificateUntil: now.Add(-time.Hour), RecordIssued: now.Add(-8 * 24 * time.Hour)},
		{Name: "dave"},
		{Name: "erin", Roles: both[1:], Addresses: at("192.0.2.9"), Punch: true, Reachable: &yes, CertificateUntil: now.Add(time.Hour), RecordIssued: now},
		{Name: "frank", Roles: both[1:], Addresses: at("192.0.2.10"), Reachable: &no, Enforces: &no, CertificateUntil: now.Add(time.Hour), RecordIssued: now},
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
	onTerminals(t, "members", []int{60, 80}, func(p *printer) error { return p.members(&all, now) })
}

func TestExpelled(t *testing.T) {
	const done = "mallory is expelled: its certificates are revoked, and all connected members were notified.\n"
	many := strings.Fields("a b c d e f g h i j k l")
	for _, test := range []struct {
		expulsion api.Expulsion
		want      string
	}{
		{api.Expulsion{Pending: "the bus is not up"}, "mallory is expelled and gets no new certificate. Not all members could be notified yet; the agent keeps trying:\nthe bus is not up\n"},
		{api.Expulsion{}, done},
		{api.Expulsion{Waypoints: &api.Enforcement{}}, done},
		{api.Expulsion{Waypoints: &api.Enforcement{Of: 1, Confirmed: 1}}, done + "The one connected waypoint confirmed within 1.23s that it refuses the member.\n"},
		{api.Expulsion{Waypoints: &api.Enforcement{Of: 3, Confirmed: 2, Away: []string{"erin"}}},
			done + "All 2 connected waypoints confirmed within 1.23s that they refuse it.\nNot connected, and will refuse it when they reconnect: erin.\n"},
		{api.Expulsion{Waypoints: &api.Enforcement{Of: 1, Away: []string{"erin"}}}, done + "Not connected, and will refuse it when they reconnect: erin.\n"},
		{api.Expulsion{Waypoints: &api.Enforcement{Of: 13, Confirmed: 1, Waiting: many}},
			done + "1 of 13 connected waypoints confirmed within 1.23s that they refuse it. Not yet: a, b, c, d, e, f, g, h, i, j and 2 more.\n" +
				"They were notified too. To see who has confirmed since, run this command again, or dcol members.\n"},
	} {
		var b strings.Builder
		test.expulsion.Member = "mallory"
		if err := Expelled(&b, test.expulsion, 1234*time.Millisecond); err != nil || b.String() != test.want {
			t.Errorf("%+v: %v\n%swant\n%s", test.expulsion, err, b.String(), test.want)
		}
	}
}

// Text that comes from other members cannot send control characters to the reader's terminal.
func TestOthersWords(t *testing.T) {
	const evil = "spam\x1b[2J\nPROBLEM: none\u202e\x9b31m"
	now := time.Now()
	var b strings.Builder
	members := api.Members{Collective: evil, Members: []api.Member{{Name: "mallory", Expelled: now, Why: evil}, {Name: "bob", Region: evil}}}
	status := api.Status{Member: "bob", Problems: []string{evil}, Client: &api.Using{Waypoints: []api.Waypoint{{Name: "bob", Why: evil}}}}
	if err := errors.Join(Members(&b, members, now), Status(&b, status, now)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if printable.Text(strings.TrimSuffix(line, "\n")) != strings.TrimSuffix(line, "\n") || strings.HasPrefix(line, "PROBLEM: none") {
			t.Errorf("printed %q", line)
		}
	}
}
