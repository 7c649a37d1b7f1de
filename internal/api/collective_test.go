package api

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestMembers(t *testing.T) {
	yes, at := true, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	want := Members{Schema: MembersSchema, Collective: "friends", Self: "hub", Behind: true, Members: []Member{
		{Name: "eve", Roles: []string{}, Kinds: []string{}, Addresses: []netip.Addr{}, Expelled: at, Why: "sent spam"},
		{
			Name: "hub", Roles: []string{"waypoint", "coordinator"}, Kinds: []string{"in-band"}, Port: 45672, Region: "eu",
			Addresses: []netip.Addr{netip.MustParseAddr("2001:db8::7")}, Subnet: netip.MustParsePrefix("10.7.1.0/26"),
			Capacity: 1e8, CertificateUntil: at, RecordIssued: at, RecordUntil: at, Reachable: &yes, Used: true, Joined: at, Reach: &Reach{Yes: 2, Of: 3, At: at, By: []string{"alice", "bob"}, Why: "no answer"},
		},
	}}
	socket, _ := serve(t, fake{members: want})
	got, err := Dial(socket).Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
		t.Errorf("(-agent's +client's)\n%s", d)
	}
	socket, _ = serve(t, fake{members: Members{Schema: "dcol.members/2"}})
	if _, err := Dial(socket).Members(t.Context()); err == nil || !strings.Contains(err.Error(), "restart the agent") {
		t.Errorf("another schema: %v", err)
	}
}

func TestInviteAndExpel(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	request := InviteRequest{Name: "carol", LifetimeSeconds: 86400}
	invitation := Invitation{Line: "dcol1-abc", Expires: at}
	socket, _ := serve(t, fake{
		invited: func(r InviteRequest) (Invitation, error) {
			if r != request {
				t.Errorf("the agent was asked %+v, want %+v", r, request)
			}
			return invitation, nil
		},
		expelled: func(r ExpelRequest) (Expulsion, error) {
			if r.Member != "eve" {
				return Expulsion{}, errors.New("there is no member " + r.Member)
			}
			return Expulsion{Member: r.Member, Pending: r.Why}, nil
		},
	})
	agent := Dial(socket)
	if got, err := agent.Invite(t.Context(), request); err != nil || got != invitation {
		t.Errorf("got %+v, %v; want %+v", got, err, invitation)
	}
	want := Expulsion{Member: "eve", Pending: "spam"}
	if got, err := agent.Expel(t.Context(), ExpelRequest{Member: "eve", Why: "spam"}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if _, err := agent.Expel(t.Context(), ExpelRequest{Member: "adam"}); err == nil || err.Error() != "there is no member adam" {
		t.Error(err)
	}
}

func fullCollective(since time.Time) *Collective {
	yes := true
	return &Collective{
		Name: "friends", Members: 12, Behind: true, BehindWhy: "nobody answers", Ignored: map[string]uint64{"older": 2},
		Coordinator: CoordinatorLink{Connected: true, Server: "hub", Since: since, Heard: since, Why: "refused"},
		Certificate: Certificate{Until: since, RenewAt: since, Renewed: since, Failures: 3, Why: "nobody answers", Expelled: "sent spam"},
		Record:      OwnRecord{Published: since, Until: since, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, Port: 45672, Why: "refused", Reachable: &yes, Checked: &Reach{Yes: 1, Of: 2, At: since, By: []string{"bob"}, Why: "no answer"}},
		Chosen:      []string{"bob"},
	}
}
