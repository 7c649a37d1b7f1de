package client

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
)

func TestFixes(t *testing.T) {
	w := api.Why{
		Connections: []api.Connection{{Note: "the server takes 2 beside the first subflow"}},
		Candidates: []api.Candidate{
			{Taken: true, Why: "the quota of wwan0 is used up"},
			{Why: "the server accepts no more subflows"}, {Why: "a spare: others come first"},
		},
		Note: "this month's 20 GB for detours are used up (client.budget.total)",
	}
	if d := cmp.Diff([]string{fixBudget, fixLimit}, fixesOf(&w, &steering{})); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if got := fixesOf(&api.Why{Note: "no detour leads there now"}, &steering{}); got != nil {
		t.Errorf("without a fix: %q", got)
	}
}

// If the configuration excludes a waypoint, dcol use --reset does not help.
func TestFixesOfChoice(t *testing.T) {
	const (
		only  = `client.use_only is true and client.use lacks bob: dcol config set client.use_only false, or dcol config set client.use '["carol", "bob"]', then dcol reload`
		avoid = `client.avoid has bob: dcol config set client.avoid '["eve"]', then dcol reload`
		reset = "dcol use --reset takes waypoints as the configuration says"
	)
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
			{Candidates: []api.Candidate{{Waypoint: "bob", Why: unwantedWords}, {Waypoint: "bob", Kind: "in-band", Why: unwantedWords}}},
			{Unavailable: []api.Unavailable{{Waypoint: "bob", Why: unwantedWords}}},
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
	w := api.Why{Server: netip.MustParseAddrPort("10.0.2.2:443"), Note: "10.0.2.2 is in client.exclude (10.0.0.0/8)"}
	if got := fixesOf(&w, &s); len(got) != 1 || !strings.HasPrefix(got[0], `dcol config set client.exclude '["192.168.0.0/16"]', then dcol reload, `) || !strings.Contains(got[0], "waypoint.allow") {
		t.Errorf("excluded: %q", got)
	}
	w.Note = "10.0.2.2 is this host"
	if got := fixesOf(&w, &s); got != nil {
		t.Errorf("this host: %q", got)
	}
}

// The words are those of internal/path and its policies, or begin a text that these make.
func TestFixesKnowTheReasons(t *testing.T) {
	var texts strings.Builder
	files, err := filepath.Glob("../../path/*.go")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../../path/policy/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(files, more) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
				if s, err := strconv.Unquote(text.Value); err == nil {
					texts.WriteString(s + "\n")
				}
			}
			return true
		})
	}
	for _, f := range fixes {
		words := strings.TrimPrefix(f.words, "in-band ") // the kind is put in
		if !strings.Contains(texts.String(), words) {
			t.Errorf("internal/path has no reason with %q", f.words)
		}
	}
}
