package client

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/budget"
	"github.com/detour-collective/dcol/internal/path/policy"
)

func TestFixes(t *testing.T) {
	w := api.Why{
		Connections: []api.Connection{{NoteReason: &api.Reason{Code: "server-limit"}}, {}},
		Candidates: []api.Candidate{
			{Taken: true, Reason: api.Reason{Code: "rests-quota"}},
			{Kind: "wireguard", Reason: api.Reason{Code: "rests-blocked"}},
			{Kind: "in-band", Reason: api.Reason{Code: "rests-blocked"}},
			{Reason: api.Reason{Code: "server-limit"}}, {Reason: api.Reason{Code: "later"}},
			{Reason: api.Reason{Code: "budget-low"}}, {Reason: api.Reason{Code: "rests-budget", Budget: "waypoint"}},
		},
		NoteReason: &api.Reason{Code: "budget", Budget: "total"},
	}
	want := []string{fixOfBudget("total"), fixBlocked, fixes["server-limit"], fixOfBudget("waypoint")}
	if d := cmp.Diff(want, fixesOf(&w, &steering{})); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if got := fixesOf(&api.Why{NoteReason: &api.Reason{Code: "no-detour"}}, &steering{}); got != nil {
		t.Errorf("without a fix: %q", got)
	}
}

// A reason names the budget that is used up, so that the fix names its key.
func TestReasonNamesBudget(t *testing.T) {
	spent := path.SpentError{Standing: budget.Standing{Scope: budget.Metered, Limit: 1, Used: 1}}
	r := describeReason(&policy.CandidateReason{Cause: policy.CandidateRests, Rest: policy.Rest{Cause: policy.RestsSpent, Err: spent}})
	if r.Code != "rests-budget" || r.Budget != "metered" {
		t.Errorf("the reason is %+v", r)
	}
	if r := describeNote(&path.Note{Code: path.NoteBudget, Budget: budget.Waypoint}); r.Code != "budget" || r.Budget != "waypoint" {
		t.Errorf("the note's reason is %+v", r)
	}
	if r := describeNote(&path.Note{}); r != nil {
		t.Errorf("no note has the reason %+v", r)
	}
}

// If the configuration excludes a waypoint, dcol use --reset does not help.
func TestFixesOfChoice(t *testing.T) {
	const (
		only  = `client.use_only is true and client.use lacks bob: dcol config set client.use_only false, or dcol config set client.use '["carol", "bob"]', then dcol reload`
		avoid = `client.avoid has bob: dcol config set client.avoid '["eve"]', then dcol reload`
		reset = "dcol use --reset takes waypoints as the configuration says"
	)
	unwanted := api.Reason{Code: "rests-unwanted"}
	for name, test := range map[string]struct {
		settings config.Client
		request  api.SteerRequest
		want     []string
	}{
		"at run time, only another": {request: api.SteerRequest{Word: api.SteerUse, Waypoints: []string{"carol"}, Only: true}, want: []string{reset}},
		"at run time, avoided":      {request: api.SteerRequest{Word: api.SteerAvoid, Waypoints: []string{"bob"}}, want: []string{reset}},
		"configured, only another":  {settings: config.Client{Use: []string{"carol"}, UseOnly: true}, want: []string{only}},
		"configured, avoided":       {settings: config.Client{Avoid: []string{"bob", "eve"}}, want: []string{avoid}},
		"configured, both": {
			settings: config.Client{Use: []string{"carol"}, UseOnly: true, Avoid: []string{"bob", "eve"}}, want: []string{only, avoid},
		},
		"configured, and at run time": {
			settings: config.Client{Use: []string{"carol"}, UseOnly: true}, request: api.SteerRequest{Word: api.SteerAvoid, Waypoints: []string{"bob"}}, want: []string{only},
		},
		"configured, and only another at run time": {
			settings: config.Client{Use: []string{"bob"}, UseOnly: true}, request: api.SteerRequest{Word: api.SteerUse, Waypoints: []string{"dave"}, Only: true}, want: []string{reset},
		},
	} {
		s := newSteering(test.settings)
		if test.request.Word != "" {
			if err := s.change(test.request, time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
		}
		if will := s.will(); will.Allows("bob") {
			t.Fatalf("%s: bob is allowed", name)
		}
		for _, w := range []api.Why{
			{Candidates: []api.Candidate{{Waypoint: "bob", Reason: unwanted}, {Waypoint: "bob", Kind: "in-band", Reason: unwanted}}},
			{Unavailable: []api.Unavailable{{Waypoint: "bob"}}},
		} {
			if d := cmp.Diff(test.want, fixesOf(&w, &s)); d != "" {
				t.Errorf("%s (-want +got)\n%s", name, d)
			}
		}
	}
}

// A destination in client.exclude can be allowed, but not this host's own addresses.
func TestFixOfExclusion(t *testing.T) {
	s := newSteering(config.Client{Exclude: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/16")}})
	w := api.Why{Server: netip.MustParseAddrPort("10.0.2.2:443"), NoteReason: &api.Reason{Code: "excluded"}}
	if got := fixesOf(&w, &s); len(got) != 1 || !strings.HasPrefix(got[0], `dcol config set client.exclude '["192.168.0.0/16"]', then dcol reload, `) || !strings.Contains(got[0], "waypoint.allow") {
		t.Errorf("excluded: %q", got)
	}
	w.NoteReason.Code = "this-host"
	if got := fixesOf(&w, &s); got != nil {
		t.Errorf("this host: %q", got)
	}
}

// The codes are those of internal/path and its policies. docs/cli.md lists them.
func TestFixesKnowTheCodes(t *testing.T) {
	codes := []string{
		string(path.NoteServerLimit), string(path.NoteServerDenies), string(path.NoteQuota), string(path.NoteExcluded), string(path.NoteWasExcluded),
	}
	for cause := policy.CandidateChosen; cause <= policy.CandidateDrawn; cause++ {
		codes = append(codes, (&policy.CandidateReason{Cause: cause}).Code())
	}
	for rest := policy.RestsFailed; rest <= policy.RestsSpent; rest++ {
		codes = append(codes, (&policy.CandidateReason{Cause: policy.CandidateRests, Rest: policy.Rest{Cause: rest}}).Code())
	}
	for _, code := range slices.Concat(slices.Collect(maps.Keys(fixes)), []string{"rests-blocked", "rests-unwanted", "excluded"}) {
		if !slices.Contains(codes, code) {
			t.Errorf("no reason has the code %q", code)
		}
	}
}
