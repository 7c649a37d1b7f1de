package ui

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/api"
)

var update = flag.Bool("update", false, "write the golden files")

func TestGiven(t *testing.T) {
	at := time.Date(2026, 3, 1, 14, 0, 0, 0, time.Local)
	for _, test := range []struct {
		given api.Given
		want  string
	}{
		{api.Given{Open: true}, "Members may open connections through this waypoint.\nhours: always\ndestinations: public addresses\nbandwidth: unlimited\nquota: none\n"},
		{api.Given{
			Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")},
			Deny:  []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, DenyPorts: []int{25, 587},
		}, "\ndestinations: public addresses; allowed: 10.0.0.0/8, fd00::/8; denied: 192.0.2.0/24; denied ports: 25, 587\n"},
		{api.Given{Closed: "switched-off"}, "it is switched off (`dcol waypoint on` opens it).\n"},
		{api.Given{Closed: "switched-off", Until: at}, "it is switched off, until Sun 1 Mar 14:00.\n"},
		{api.Given{Closed: "quota-traffic", Until: at, QuotaBytes: 5e9, UsedBytes: 5e9, Renews: at}, "quota: 5.00 GB of 5.00 GB used this month (100 %), renews on 1 Mar 14:00\n"},
	} {
		var b strings.Builder
		if err := Given(&b, test.given); err != nil || !strings.Contains(b.String(), test.want) {
			t.Errorf("%+v: %v\n%s\nlacks %s", test.given, err, b.String(), test.want)
		}
	}
}

func TestStatus(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	at := netip.MustParseAddrPort
	both := api.Status{
		Member: "alice", Version: "v1.0.0", Roles: []string{"client", "waypoint"}, Since: ago(3 * time.Hour),
		Problems: []string{"/etc/dcol/alice.crt ends in 3 days: ask for a new one"},
		Client: &api.Using{
			Waypoints: []api.Waypoint{
				{Name: "bob", Addr: at("192.0.2.7:45672"), State: "up", Since: ago(2 * time.Hour), RTT: 12.3, Loss: 0.004, LossPackets: 60, Mappings: 3, Subflows: 1, Kinds: []api.WaypointKind{
					{Kind: "wireguard", State: "down", Why: "no WireGuard handshake with 192.0.2.7:51820/udp: does that port reach the waypoint?"},
					{Kind: "openvpn", State: "not-offered"}, {Kind: "in-band", State: "resting", Why: "a join was not answered; tried again in 9 min"}, {Kind: "mapped", State: "ready"},
				}},
				{Name: "carol", Addr: at("[2001:db8::8]:45672"), State: "down", Since: ago(40 * time.Second), Why: "no answer: is its agent running?"},
				{Name: "frank", Addr: at("192.0.2.10:45672"), State: "closed", Since: ago(time.Minute), RTT: 20, Why: "outside-hours until 2 Mar 22:00: the waypoint is closed at this hour; use another waypoint", Kinds: []api.WaypointKind{
					{Kind: "in-band", State: "closed"}, {Kind: "mapped", State: "closed"},
				}},
				{Name: "erin", Addr: at("192.0.2.9:45672"), State: "up", Since: ago(time.Minute), RTT: 20, Kinds: []api.WaypointKind{
					{Kind: "openvpn", State: "ready", Why: "rests towards 10.0.0.9:22: connection refused"},
				}},
			},
			Steering: api.Steering{Use: []api.Steered{{Name: "bob"}, {Name: "carlo", Unknown: true}}, Avoid: []api.Steered{{Name: "mallory"}}, Warning: "bob is down: connections have only their direct path until it is back"},
			Converting: api.Converting{Use: "auto", Converters: []api.Converter{{Name: "bob", Addr: at("192.0.2.7:5124"), RTT: 12.3}, {Name: "erin", Addr: at("10.0.0.9:5124"), RTT: 20, Excluded: true}, {Name: "frank", Addr: at("10.192.8.1:5124"), BehindNAT: true},
				{Name: "grace", Addr: at("192.0.2.11:5124"), AsideUntil: time.Date(2026, 3, 1, 12, 0, 40, 0, time.Local), Refuses: true}, {Name: "heidi", Addr: at("192.0.2.12:5124"), AsideUntil: time.Date(2026, 3, 1, 12, 5, 0, 0, time.Local)}},
				Refused: []api.RefusedConverter{{Name: "carol", Why: "tunnel-quota: the member has as many as it may"}},
				Incoming: []api.Incoming{
					{Converter: "bob", Port: 8080, Addr: netip.MustParseAddr("192.0.2.7"), To: at("127.0.0.1:80"), Granted: true},
					{Converter: "bob", Port: 22, Addr: netip.MustParseAddr("192.0.2.7"), To: at("127.0.0.1:22"), Why: "refused (port-forbidden)"},
					{Converter: "carol", Port: 8080, To: at("127.0.0.1:80"), Why: "this host has no session with it, or it offers no converter"},
				}},
			Connections: []api.Connection{
				{
					Token: "0a0b0c0d", Remote: at("203.0.113.5:443"), Since: ago(90 * time.Second),
					Subflows: []api.Subflow{
						{Kind: "direct", State: "up", Remote: at("203.0.113.5:443"), RTT: 30.25, ReceiveRate: 9.4e6, SendRate: 120e3, BytesReceived: 105e6, BytesSent: 1200},
						{Kind: "mapped", Waypoint: "bob", State: "up", Remote: at("192.0.2.7:443"), RTT: 61, ReceiveRate: 9.3e6, BytesReceived: 104e6, Retransmitted: 4, Why: "in-band rests after a failure"},
					},
				},
				{
					Token: "01020304", Remote: at("[2001:db8:5::5]:22"), Since: ago(2 * time.Second), Note: "no detour to this server is at hand",
					Subflows: []api.Subflow{{Kind: "direct", State: "up", Remote: at("[2001:db8:5::5]:22"), RTT: 8}},
				},
			},
		},
		Relay: &api.Relay{Version: "v1.0.0", PID: 4711, Parts: []api.RelayPart{
			{Name: "incoming at 8080 for dave", Listen: ":8080", Open: 1, Accepted: 12, Bytes: 3.4e6},
			{Name: "converter", Listen: ":5124", Open: 3, Accepted: 120, Refused: 2, Bytes: 1.2e9},
			{Name: "proxy", Listen: "127.0.0.1:1080", Problem: "listen tcp 127.0.0.1:1080: bind: address already in use"},
		}},
		Serving: &api.Serving{
			Listen: ":45672", Sessions: 2, Mappings: 12, Granted: 40, Offers: []string{"in-band", "mapped"},
			InBand:  &api.InBand{Authenticated: true, Addresses: 2, Accepted: 40, BadAuthenticator: 3},
			Refused: map[string]int{"quota of mappings": 2, "destination forbidden": 7},
			Given: api.Given{
				Closed: "outside-hours", Until: time.Date(2026, 3, 1, 22, 0, 0, 0, time.Local), Hours: []string{"22:00-07:00", "sat 00:00-24:00"},
				Bandwidth: 50e6, BandwidthPerMember: 10e6, UsedBytes: 120e9, QuotaBytes: 500e9, Renews: time.Date(2026, 4, 1, 0, 0, 0, 0, time.Local),
				Members: []api.GivenMember{
					{Member: "dave", Open: true, Only: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, Deny: []netip.Prefix{netip.MustParsePrefix("198.51.100.9/32")}, Ports: []uint16{80, 443}},
					{Member: "erin", Closed: "quota-traffic", Until: time.Date(2026, 4, 1, 0, 0, 0, 0, time.Local), Hours: []string{"22:00-07:00"}, QuotaBytes: 50e9, UsedBytes: 50e9},
				},
			},
			Members: []api.Served{{Member: "dave", Mappings: 12, Tunnels: 1, Flows: 3, Bytes: 3.2e9}},
			Outside: &api.Outside{
				Address: at("203.0.113.9:45672"), Leaves: "reachable", NAT: "port-restricted cone NAT", Router: "PCP",
				Opened: []api.OpenedPort{{Protocol: "udp", Port: 45672, External: at("203.0.113.9:45672")}},
			},
		},
	}
	no := false
	member := api.Status{
		Member: "alice", Version: "v1.0.0", Roles: []string{"waypoint"}, Since: ago(time.Hour),
		Collective: &api.Collective{
			Name: "friends", Members: 12, Coordinator: api.CoordinatorLink{Connected: true, Server: "hub", Since: ago(50 * time.Minute)},
			Certificate: api.Certificate{Until: now.Add(6 * 24 * time.Hour), RenewAt: now.Add(7 * time.Hour)},
			Record:      api.OwnRecord{Published: ago(50 * time.Minute), Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, Reachable: &no},
			Ignored:     map[string]uint64{"bad-signature": 3},
		},
	}
	member.Coordinator = &api.Coordinator{
		Listen: ":45672", Members: 12, Invitations: 1, Expelled: 2, Unreachable: []string{"bob"}, Messages: 900, Refused: 50, Floods: 1,
	}
	lonely := api.Status{
		Member: "alice", Version: "v1.0.0", Roles: []string{"client"}, Since: ago(time.Hour),
		Collective: &api.Collective{
			Name: "friends", Members: 1, Behind: true, BehindWhy: "not connected to the bus",
			Coordinator: api.CoordinatorLink{Since: ago(50 * time.Minute), Why: "connection refused"},
			Certificate: api.Certificate{Until: now.Add(40 * time.Hour), RenewAt: now.Add(50 * time.Minute), Failures: 7, Why: "no coordinator can be reached"},
		},
	}
	expelled := api.Status{
		Member: "alice", Version: "v1.0.0", Roles: []string{"client"}, Since: ago(time.Hour),
		Collective: &api.Collective{
			Name: "friends", Certificate: api.Certificate{Until: ago(time.Hour), Expelled: "alice was expelled on 2026-03-01 11:00 UTC: sent spam"}, Record: api.OwnRecord{Removed: "expelled: sent spam"},
		},
		Serving: &api.Serving{Listen: ":45672", Offers: []string{"mapped"}, Given: api.Given{Open: true},
			Outside: &api.Outside{Leaves: "not-known", NAT: "unknown", Why: "there is no other waypoint to ask at which address it sees this host; asked again within 10 min"}},
	}
	idle := api.Status{Member: "alice", Version: "v1.0.0", Roles: []string{"client"}, Since: ago(5 * time.Second), Client: &api.Using{}}
	plain := idle
	plain.Client = &api.Using{Plain: []netip.AddrPort{at("203.0.113.5:443"), at("203.0.113.5:443"), at("[2001:db8:5::5]:22")}}
	offered, elsewhere, avoiding := plain, plain, idle
	withConverter := *plain.Client
	withConverter.Converting.Offered = []string{"bob", "dave"}
	offered.Client, elsewhere.Collective = &withConverter, member.Collective
	avoiding.Client = &api.Using{Steering: api.Steering{Avoid: []api.Steered{{Name: "bob"}, {Name: "carlo", Unknown: true}}}}
	for name, s := range map[string]api.Status{"both": both, "idle": idle, "plain": plain, "plain-offered": offered, "plain-member": elsewhere, "member": member, "lonely": lonely, "avoiding": avoiding, "expelled": expelled} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := Status(&b, s, now); err != nil {
				t.Fatal(err)
			}
			compare(t, "testdata/status-"+name+".txt", b.String())
		})
	}
	onTerminals(t, "status-both", []int{60, 80}, func(p *printer) error { return status(p, both, now) })
}

// The reasons below the table distinguish the addresses of one waypoint. A kind that can never be used at an address is
// shown in the details only, because another one is ready.
func TestWaypointWithSeveralAddresses(t *testing.T) {
	at := netip.MustParseAddrPort
	s := api.Status{Client: &api.Using{Waypoints: []api.Waypoint{
		{Name: "bob", Addr: at("192.0.2.7:45672"), State: "up", Kinds: []api.WaypointKind{{Kind: "in-band", State: "ready", Why: "not tried yet"}}},
		{Name: "bob", Addr: at("[2001:db8::7]:45672"), State: "up", Kinds: []api.WaypointKind{{Kind: "mapped", State: "ready"}, {Kind: "in-band", State: "unusable", Why: "needs IPv4"}}},
	}}}
	var glance, all strings.Builder
	if err := errors.Join(Status(&glance, s, time.Now()), Details(&all, s, time.Now())); err != nil {
		t.Fatal(err)
	}
	if out := glance.String(); !strings.Contains(out, "  bob at 192.0.2.7:45672, in-band: not tried yet") || strings.Contains(out, "needs IPv4") {
		t.Errorf("at a glance:\n%s", out)
	}
	if out := all.String(); !strings.Contains(out, "  bob at [2001:db8::7]:45672, in-band is unusable: needs IPv4") {
		t.Errorf("in detail:\n%s", out)
	}
}

// A waypoint's refusal is written once, although it applies to each kind.
func TestRefusalIsWrittenOnce(t *testing.T) {
	const refused = "refused (destination-forbidden): 203.0.113.5:22 is not forwarded to"
	rests := api.WaypointKind{Kind: "in-band", State: api.KindReady, Why: "rests towards 203.0.113.5:22: " + refused}
	s := api.Status{Client: &api.Using{Waypoints: []api.Waypoint{{Name: "bob", State: api.WaypointUp, Why: refused, Kinds: []api.WaypointKind{rests, {Kind: "mapped", State: api.KindReady, Why: "rests towards 203.0.113.6:22: no answer"}}}}}}
	for times, write := range map[int]func(io.Writer, api.Status, time.Time) error{1: Status, 2: Details} {
		var b strings.Builder
		if err := write(&b, s, time.Now()); err != nil {
			t.Fatal(err)
		}
		if strings.Count(b.String(), refused) != times || !strings.Contains(b.String(), "no answer") {
			t.Errorf("want it %d times:\n%s", times, &b)
		}
	}
}

// compare compares output with a golden file.
func compare(t *testing.T, file, now string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(golden), now); d != "" {
		t.Errorf("%s differs (-golden +now); -update writes it anew\n%s", file, d)
	}
}

func bps(rate float64) *float64 { return &rate }

// A time in another year has the year.
func TestSteeringSaysTheYear(t *testing.T) {
	now := time.Date(2026, 12, 31, 23, 0, 0, 0, time.Local)
	s := api.Steering{
		Use:   []api.Steered{{Name: "bob", Until: now.Add(time.Minute)}},
		Avoid: []api.Steered{{Name: "eve", Until: now.Add(2 * time.Hour)}},
	}
	var b strings.Builder
	if err := Steering(&b, s, now); err != nil {
		t.Fatal(err)
	}
	if want := "Taken first: bob, until 31 Dec 23:01:00\nNever taken: eve, until 1 Jan 2027 01:00:00\n"; b.String() != want {
		t.Errorf("got %s, want %s", b.String(), want)
	}
}

func TestWhy(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	at, ago := netip.MustParseAddrPort, func(d time.Duration) time.Time { return now.Add(-d) }
	server := at("203.0.113.5:443")
	bob := api.Subflow{Kind: "in-band", Waypoint: "bob", State: "up", Remote: at("192.0.2.7:443"), RTT: 25, ReceiveRate: 4e6, BytesReceived: 5e6, Why: "in-band comes first of what bob offers"}
	conn := api.Connection{Local: at("192.0.2.1:40000"), Remote: server, Since: ago(12 * time.Second), Subflows: []api.Subflow{{Kind: "direct", State: "up", Remote: server, RTT: 30}, bob}}
	full := api.Why{
		Server: server, Connections: []api.Connection{conn},
		Closed: []api.ClosedConnection{{Connection: conn, Ended: ago(5 * time.Second)}},
		Direct: api.Outlook{Measured: api.Measured{At: ago(time.Minute), MinRTT: 29.5, Loss: 0.012, Goodput: 9e6}, Wait: 56.8, Expected: bps(9e6)},
		Candidates: []api.Candidate{
			{Waypoint: "bob", Kind: "in-band", Taken: true, Untried: true, Measured: api.Measured{At: now, MinRTT: 24, Goodput: 17.5e6}, Wait: 24.1, Expected: bps(8.7e6), Why: bob.Why + "; one more bulk connection may expect 8.7 Mbit/s of bob, 3.8 Mbit/s of carol", Change: "at less than 3.8 Mbit/s, carol comes first", Claimed: &api.Claimed{Members: 3, Proven: true, Loss: "below 0.5 %", Goodput: "16 to 64 Mbit/s", Wrong: 1}, Bottlenecks: []api.Bottleneck{{Relation: "shared", Pairs: 4, Lost: 0.96, Least: 0.88, Most: 1.04}, {With: "carol", Relation: "unknown", Pairs: 1}}},
			{Waypoint: "carol", Kind: "wireguard", Wait: 40, Guessed: true, Why: "a spare: others come first", Change: "it is taken when the other detour through carol fails", Claimed: &api.Claimed{Wrong: 2}, Bottlenecks: []api.Bottleneck{{Relation: "apart", Pairs: 5, Lost: 0.02, Least: -0.1, Most: 0.14}}},
			{Waypoint: "dave", Kind: "in-band", Wait: 12, Guessed: true, AtLeast: true, Why: "in-band does not get through on this path since 11:50 (no answer)", Until: now.Add(4 * time.Minute), Claimed: &api.Claimed{Members: 1, Loss: "2 to 5 %"}, Bottlenecks: []api.Bottleneck{{Relation: "unknown", Pairs: 3, Lost: 0.5, Least: -0.2, Most: 1.2}}},
		},
	}
	full.Connections[0].Token, full.Connections[0].Tried = "0a0b0c0d", []api.Tried{
		{Waypoint: "carol", At: ago(9 * time.Second), Verdict: "measured", Why: "carried 2.0 Mbit/s while it was tried"},
		{Waypoint: "dave", At: ago(3 * time.Second), Verdict: "lost", Why: "took the place of bob for a while: 5.0 Mbit/s with it, 6.0 Mbit/s before; it stays only with 10 % more"},
	}
	full.Connections[0].Left = []api.Left{
		{Kind: "in-band", Waypoint: "erin", At: ago(6 * time.Second), Ended: true, Why: "its rate fell from 18.2 Mbit/s to 0.9 Mbit/s"},
		{Kind: "direct", At: ago(2 * time.Second), Why: "it lost 5.2 % of the packets, the path through bob 0.1 %"},
	}
	full.Closed[0].Left = full.Connections[0].Left[:1]
	spare := full.Candidates[1] // of another kind, with the same reason: both are one row
	spare.Kind, spare.Wait, spare.Claimed, spare.Bottlenecks = "openvpn", 41, nil, nil
	full.Candidates = append(full.Candidates, spare)
	for i, addr := range []string{"192.0.2.8", "192.0.2.88"} { // a waypoint with two addresses
		full.Candidates = append(full.Candidates, api.Candidate{
			Waypoint: "carol", Addr: netip.MustParseAddr(addr), Kind: "in-band", Measured: api.Measured{At: now, MinRTT: 31, Goodput: 11.3e6}, Wait: 33,
			Why:    []string{"a spare: one more bulk connection may expect 3.8 Mbit/s of it, 8.7 Mbit/s of bob", "a spare: others come first"}[i],
			Change: []string{"at more than that it comes first", "it is taken when bob fails, or first by dcol use carol"}[i], Expected: bps(3.8e6),
		})
	}
	mapped := full.Candidates[len(full.Candidates)-1] // measured like the one before, for measurements are the waypoint's
	mapped.Kind, mapped.Expected = "mapped", bps(3.8e6)
	full.Candidates = append(full.Candidates, mapped)
	full.Unavailable = []api.Unavailable{{Waypoint: "erin", State: api.WaypointClosed, Why: "the waypoint is closed at this hour"}}
	full.Fixes = []string{"a tunnel hides TCP options from middleboxes"}
	none := api.Why{Server: server, Note: "203.0.113.5 is in client.exclude (203.0.113.0/24)"}
	for name, x := range map[string]api.Why{"full": full, "none": none} {
		var b strings.Builder
		if err := Why(&b, x, now); err != nil {
			t.Fatal(err)
		}
		compare(t, "testdata/why-"+name+".txt", b.String())
	}
	onTerminals(t, "why-full", []int{80, 120}, func(p *printer) error { return p.why(&full, now) })
}

// onTerminals compares what write prints on terminals of these widths with golden files. No line may be wider.
func onTerminals(t *testing.T, name string, widths []int, write func(*printer) error) {
	t.Helper()
	for _, columns := range widths {
		var b strings.Builder
		if err := write(&printer{w: &b, columns: columns}); err != nil {
			t.Fatal(err)
		}
		compare(t, fmt.Sprintf("testdata/%s-%d.txt", name, columns), b.String())
		for line := range strings.Lines(b.String()) {
			if len(line)-len("\n") > columns {
				t.Errorf("with %d columns, a line has %d: %s", columns, len(line)-1, line)
			}
		}
	}
}
