package member

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/membership"
)

// What a person should see to, and nothing else.
func TestCollectiveProblems(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	away := errors.New("no coordinator can be reached")
	self := collective.Member{Name: "alice", NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(6 * 24 * time.Hour)}
	old := self
	old.NotBefore, old.NotAfter = now.Add(-6*24*time.Hour), now.Add(24*time.Hour)
	no := false
	waypoint := &directory.Verified{Record: directory.Record{
		Roles: []string{directory.RoleWaypoint}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, Port: 45672,
	}}
	client := &directory.Verified{Record: directory.Record{Roles: []string{directory.RoleClient}}}
	withholds := func(published *directory.Verified, address string) membership.State {
		s := membership.State{Self: self, Record: membership.Record{Verified: published, Withheld: []netip.Addr{netip.MustParseAddr(address)}}}
		s.Bus.Connected = true
		return s
	}
	for _, test := range []struct {
		name  string
		state membership.State
		want  string // of the one problem; empty: there is none
	}{
		{"well", membership.State{Self: self}, ""},
		{"coordinator away, certificate good for long", membership.State{Self: self, Renewal: membership.Renewal{Err: away}}, ""},
		{"coordinator away for long", membership.State{Self: old, Renewal: membership.Renewal{Err: away}}, "expires on 2026-03-02 12:00 UTC and cannot be renewed: no coordinator"},
		{"wrong clock", membership.State{Self: self, Renewal: membership.Renewal{Err: enrol.Refuse(enrol.ClockWrong, "a day behind")}}, "a day behind; set the clock right"},
		{"expelled", membership.State{Self: old, Renewal: membership.Renewal{Err: away, Expelled: "spam"}, Record: membership.Record{Removed: "expelled: spam"}}, "was expelled from the collective (spam)"},
		{"removed", membership.State{Self: self, Record: membership.Record{Removed: "its subnet was given to bob"}}, "given to bob"},
		{"not published, not connected", membership.State{Self: self, Record: membership.Record{Err: away}}, ""},
		{"waypoint that is not reached", membership.State{Self: self, Record: membership.Record{Verified: waypoint, Reached: &no}}, "UDP port 45672 of [192.0.2.7]"},
		{"an address that is not reached", withholds(waypoint, "2001:db8::7"), "addresses [2001:db8::7] are not published, because no member could reach"},
		{"private address of another block, beside a published one", withholds(waypoint, "fd00::1:1"), ""},
		{"only a private address", withholds(nil, "fd00::1:1"), "addresses [fd00::1:1] are not published, because they are private"},
		{"client that is not reached", membership.State{Self: self, Record: membership.Record{Verified: client, Reached: &no}}, ""},
		{"copy on disk", membership.State{Self: self, Directory: directory.State{SaveErr: errors.New("disk full")}}, "disk full"},
	} {
		got := problems(test.state, now)
		if test.want == "" && len(got) == 0 {
			continue
		}
		if len(got) != 1 || test.want == "" || !strings.Contains(got[0], test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// That others reach a waypoint is said only after somebody has tried.
func TestReachableIsSaidOfWhoWasTried(t *testing.T) {
	said := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	word := enrol.Reachability{At: said, Unreachable: []string{"bob"}, Untried: []string{"carol"}}
	yes, no := true, false
	for _, test := range []struct {
		name string
		word enrol.Reachability
		want *bool
	}{
		{"alice", word, &yes}, {"bob", word, &no}, {"carol", word, nil}, {"alice", enrol.Reachability{}, nil},
	} {
		v := &directory.Verified{Record: directory.Record{
			Name: test.name, Roles: []string{directory.RoleWaypoint}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, Port: 45672,
		}}
		got := describeMember(v, membership.State{Word: test.word}).Reachable
		if (got == nil) != (test.want == nil) || got != nil && *got != *test.want {
			t.Errorf("%s, of whom %+v is said: %v", test.name, test.word, got)
		}
	}
}

// A host that is no waypoint is nowhere to be reached.
func TestBasicOffer(t *testing.T) {
	settings := &config.Config{Collective: config.Collective{Region: "eu", Addresses: addrs("203.0.113.9")}}
	offer := BasicOffer(settings, []config.Role{config.RoleClient})
	if offer.Port != 0 || offer.Addresses != nil || offer.Region != "eu" || !slices.Equal(offer.Roles, []string{"client"}) {
		t.Errorf("%+v", offer)
	}
}
