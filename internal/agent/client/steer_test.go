package client

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
)

func TestSteering(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := newSteering(config.Client{Use: []string{"bob"}, Avoid: []string{"eve"}})
	is := func(what string, want path.Steering) {
		t.Helper()
		if d := cmp.Diff(want, s.will()); d != "" {
			t.Errorf("%s (-want +is)\n%s", what, d)
		}
	}
	do := func(r api.SteerRequest) {
		t.Helper()
		if err := s.change(r, now); err != nil {
			t.Error(err)
		}
	}
	is("as configured", path.Steering{Use: []string{"bob"}, Avoid: []string{"eve"}})

	do(api.SteerRequest{Word: api.SteerUse, Waypoints: []string{"carol", "eve"}, Only: true, ForSeconds: 60})
	is("for a minute", path.Steering{Use: []string{"carol", "eve"}, Only: true})
	do(api.SteerRequest{Word: api.SteerAvoid, Waypoints: []string{"eve"}, ForSeconds: 30})
	is("avoided again", path.Steering{Use: []string{"carol"}, Only: true, Avoid: []string{"eve"}})
	if next := s.next(); !next.Equal(now.Add(30*time.Second)) || s.expire(now.Add(29*time.Second)) {
		t.Errorf("the next end is at %v", next)
	}
	if !s.expire(now.Add(30 * time.Second)) {
		t.Error("nothing ended after 30 s")
	}
	is("for the rest of the minute", path.Steering{Use: []string{"carol", "eve"}, Only: true})
	if !s.expire(s.next()) || !s.next().IsZero() {
		t.Error("the minute does not end")
	}
	is("after a minute", path.Steering{Use: []string{"bob"}, Avoid: []string{"eve"}})

	do(api.SteerRequest{Word: api.SteerUse, Waypoints: []string{"dave"}})
	do(api.SteerRequest{Word: api.SteerAvoid, Waypoints: []string{"dave"}})
	is("nothing is left of the choice of dave", path.Steering{Use: []string{"bob"}, Avoid: []string{"dave", "eve"}})
	do(api.SteerRequest{Word: api.SteerUse, Waypoints: []string{"carol", "eve"}})
	do(api.SteerRequest{Word: api.SteerReset, Waypoints: []string{"dave"}})
	is("only dave is released", path.Steering{Use: []string{"carol", "eve"}})
	do(api.SteerRequest{Word: api.SteerReset, Waypoints: []string{"eve"}})
	is("eve is avoided as configured", path.Steering{Use: []string{"carol"}, Avoid: []string{"eve"}})
	do(api.SteerRequest{Word: api.SteerReset, Waypoints: []string{"carol"}})
	is("bob is preferred as configured", path.Steering{Use: []string{"bob"}, Avoid: []string{"eve"}})
	do(api.SteerRequest{Word: api.SteerUse, Waypoints: []string{"carol"}, Only: true})
	do(api.SteerRequest{Word: api.SteerAvoid, Waypoints: []string{"bob"}, ForSeconds: 60})
	do(api.SteerRequest{Word: api.SteerReset})
	is("reset", path.Steering{Use: []string{"bob"}, Avoid: []string{"eve"}})
	if err := s.change(api.SteerRequest{Word: "like"}, now); err == nil {
		t.Error("a word that does not exist was accepted")
	}
}

// requestOf returns the request of a command such as "use good far --only --for 60".
func requestOf(t interface{ Fatal(...any) }, command string) api.SteerRequest {
	words, seconds, _ := strings.Cut(command, " --for ")
	words, only := strings.CutSuffix(words, " --only")
	list := strings.Fields(words)
	r := api.SteerRequest{Word: list[0], Waypoints: list[1:], Only: only}
	if seconds != "" {
		var err error
		if r.ForSeconds, err = strconv.ParseFloat(seconds, 64); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// When the time of a choice is over, what it replaced is in effect again.
func TestTemporaryChoicesGiveWay(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	only := config.Client{Use: []string{"good"}, UseOnly: true}
	for name, test := range map[string]struct {
		settings config.Client
		commands []string
		now      string   // from now on
		ends     []string // what follows when the next part of the choice ends
	}{
		"a configured avoidance":           {config.Client{Avoid: []string{"good"}}, []string{"use good --for 2"}, "use good (2s)", []string{"avoid good"}},
		"an avoidance":                     {config.Client{}, []string{"avoid good far", "use good --for 2"}, "use good (2s), avoid far", []string{"avoid far good"}},
		"the same avoidance":               {config.Client{}, []string{"avoid good", "avoid good --for 2"}, "avoid good", []string{"avoid good"}},
		"the same preference":              {config.Client{}, []string{"use good", "use good --for 2"}, "use good", []string{"use good"}},
		"--only":                           {config.Client{}, []string{"use good --only", "use good --for 2"}, "use good (2s)", []string{"use good --only"}},
		"a preference":                     {config.Client{}, []string{"use good", "use far --only --for 2"}, "use far (2s) --only", []string{"use good"}},
		"a preference that is avoided":     {config.Client{}, []string{"use good", "avoid good --for 2"}, "avoid good (2s)", []string{"use good"}},
		"a longer avoidance":               {config.Client{}, []string{"avoid good --for 9", "use good --for 2"}, "use good (2s)", []string{"avoid good (9s)", ""}},
		"a shorter avoidance":              {config.Client{}, []string{"avoid good --for 2", "use good --for 9"}, "use good (9s)", []string{""}},
		"one avoidance after another":      {config.Client{}, []string{"avoid good --for 9", "avoid good --for 2"}, "avoid good (9s)", []string{"avoid good (9s)", ""}},
		"a preference within a longer one": {config.Client{}, []string{"use good far --for 9", "use near --for 2"}, "use near (2s)", []string{"use good (9s) far (9s)", ""}},
		"a lasting choice replaces it":     {config.Client{Avoid: []string{"good"}}, []string{"use good --for 2", "avoid good"}, "avoid good", []string{"avoid good"}},
		"a lasting one of another name":    {config.Client{}, []string{"use good --for 2", "avoid far"}, "use good (2s), avoid far", []string{"avoid far"}},
		"client.use_only":                  {only, []string{"use far --for 2"}, "use far (2s)", []string{"use good --only"}},
		"--only within client.use_only":    {only, []string{"use far --only --for 2"}, "use far (2s) --only", []string{"use good --only"}},
		"a reset ends it at once":          {config.Client{Avoid: []string{"good"}}, []string{"use good far --for 2", "reset good"}, "use far (2s), avoid good", []string{"avoid good"}},
		"a reset ends what it replaced":    {config.Client{}, []string{"avoid good", "use good --for 2", "reset good"}, "", nil},
		"a reset has no end":               {config.Client{}, []string{"avoid good far", "reset good --for 2"}, "avoid far", nil},
		"a reset of all does":              {only, []string{"avoid far", "use far --for 2", "reset"}, "use good --only", nil},
	} {
		s := newSteering(test.settings)
		for _, command := range test.commands {
			if err := s.change(requestOf(t, command), now); err != nil {
				t.Fatalf("%s: %s: %v", name, command, err)
			}
		}
		got := []string{told(&s, now)}
		for !s.next().IsZero() {
			if s.expire(s.next().Add(-1)) || !s.expire(s.next()) {
				t.Fatalf("%s: the next end is not at %v", name, s.next())
			}
			got = append(got, told(&s, now))
		}
		if d := cmp.Diff(append([]string{test.now}, test.ends...), got); d != "" {
			t.Errorf("%s (-want +got)\n%s", name, d)
		}
	}
}

// A choice that waits for the end of another one can be reset, too.
func TestResetOfWaitingChoices(t *testing.T) {
	s, now := newSteering(config.Client{Avoid: []string{"eve"}}), time.Unix(1, 0)
	for _, command := range []string{"use gone", "use far --for 2"} {
		if err := s.change(requestOf(t, command), now); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]string{"eve", "gone", "far"}, s.named()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if err := s.change(requestOf(t, "reset gone"), now); err != nil {
		t.Fatal(err)
	}
	if s.expire(s.next()); told(&s, now) != "avoid eve" {
		t.Errorf("after the reset, %s", told(&s, now))
	}
}

// told returns the choice as a short text, with the times that each part still has at now.
func told(s *steering, now time.Time) string {
	names := func(word string, list []api.Steered, only bool) string {
		for _, w := range list {
			word += " " + w.Name
			if !w.Until.IsZero() {
				word += fmt.Sprintf(" (%v)", w.Until.Sub(now))
			}
		}
		if only {
			word += " --only"
		}
		return word
	}
	var parts []string
	choice := s.describe()
	if len(choice.Use) > 0 || choice.Only {
		parts = append(parts, names("use", choice.Use, choice.Only))
	}
	if len(choice.Avoid) > 0 {
		parts = append(parts, names("avoid", choice.Avoid, false))
	}
	return strings.Join(parts, ", ")
}

// Who allows only some waypoints does not get others by avoiding these.
func TestLastAllowedWaypointStays(t *testing.T) {
	const (
		none     = "no waypoint would be left"
		later    = " when an earlier choice ends"
		chosen   = ", because all that dcol use --only allows would be avoided: allow others with dcol use, or undo all choices with dcol use --reset"
		settings = ", because client.use_only is true and all in client.use would be avoided: allow others with dcol use, or undo all choices with dcol use --reset"
	)
	only := config.Client{Use: []string{"good"}, UseOnly: true}
	for name, test := range map[string]struct {
		settings config.Client
		commands []string // the last one is refused
		want     string
	}{
		"chosen":                        {config.Client{}, []string{"use good --only", "avoid good"}, none + chosen},
		"for some time":                 {config.Client{}, []string{"use good --only --for 2", "avoid good --for 1"}, none + chosen},
		"both":                          {config.Client{}, []string{"use good far --only", "avoid far", "avoid good"}, none + chosen},
		"configured":                    {only, []string{"avoid good"}, none + settings},
		"later, as chosen":              {config.Client{}, []string{"use good --only", "use far --for 2", "avoid good"}, none + later + chosen},
		"later, as configured":          {only, []string{"use far --only --for 2", "avoid good"}, none + later + settings},
		"what replaced it is undone":    {only, []string{"use far", "avoid good", "reset far"}, none + settings},
		"what replaced it is undone, 2": {config.Client{}, []string{"use good --only", "use far --for 2", "avoid good --for 1", "reset far"}, none + chosen},
	} {
		s, now := newSteering(test.settings), time.Unix(1, 0)
		last := len(test.commands) - 1
		for _, command := range test.commands[:last] {
			if err := s.change(requestOf(t, command), now); err != nil {
				t.Fatalf("%s: %s: %v", name, command, err)
			}
		}
		before := told(&s, now)
		if err := s.change(requestOf(t, test.commands[last]), now); err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
		if after := told(&s, now); after != before {
			t.Errorf("%s: the refused request changed %q to %q", name, before, after)
		}
		if err := s.change(requestOf(t, "reset"), now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// After temporary choices, all is as if they had not been made. At no time is it only avoided waypoints that may be taken.
func TestTemporaryChoicesLeaveNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 3, rapid.ID)
		settings := config.Client{Use: names.Draw(t, "client.use"), UseOnly: rapid.Bool().Draw(t, "client.use_only")}
		for _, name := range []string{"a", "b", "c"} {
			if !slices.Contains(settings.Use, name) && rapid.Bool().Draw(t, "client.avoid") {
				settings.Avoid = append(settings.Avoid, name)
			}
		}
		all, lasting := newSteering(settings), newSteering(settings)
		now := time.Unix(1, 0)
		for range rapid.IntRange(1, 8).Draw(t, "requests") {
			r := api.SteerRequest{Word: rapid.SampledFrom([]string{api.SteerUse, api.SteerAvoid, api.SteerReset}).Draw(t, "word"), Waypoints: names.Draw(t, "waypoints")}
			r.Only = r.Word == api.SteerUse && rapid.Bool().Draw(t, "only")
			if r.Word != api.SteerReset {
				r.ForSeconds = float64(rapid.IntRange(0, 4).Draw(t, "for"))
			}
			if all.change(r, now) == nil && r.ForSeconds == 0 {
				if err := lasting.change(r, now); err != nil {
					t.Fatalf("without temporary choices: %v", err)
				}
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "pass")) * time.Second)
			all.expire(now)
			if will := all.will(); will.Only && len(will.Use) == 0 {
				t.Fatalf("no waypoint is left: %+v", will)
			}
		}
		for !all.next().IsZero() {
			all.expire(all.next())
			if will := all.will(); will.Only && len(will.Use) == 0 {
				t.Fatalf("no waypoint is left: %+v", will)
			}
		}
		if d := cmp.Diff(lasting.describe(), all.describe()); d != "" {
			t.Fatalf("(-without temporary choices +with them)\n%s", d)
		}
	})
}

// If only waypoints that do not work may be taken, the answer says what that means and how to undo it.
func TestSteeringWarns(t *testing.T) {
	at := func(name string, state api.WaypointState, kinds ...api.WaypointKind) api.Waypoint {
		return api.Waypoint{Name: name, State: state, Kinds: kinds}
	}
	up := func(name string) api.Waypoint { return at(name, api.WaypointUp) }
	down := func(name string) api.Waypoint {
		return at(name, api.WaypointDown, api.WaypointKind{Kind: "in-band", State: api.KindDown})
	}
	tunnel := at("south", api.WaypointDown, api.WaypointKind{Kind: "wireguard", State: api.KindReady})
	only := func(names ...string) api.SteerRequest {
		return api.SteerRequest{Word: api.SteerUse, Waypoints: names, Only: true}
	}
	const undo = "`dcol use --reset` undoes this"
	for name, test := range map[string]struct {
		settings config.Client
		request  api.SteerRequest
		now      []api.Waypoint
		want     string
	}{
		"down":        {request: only("south"), now: []api.Waypoint{down("south"), up("north")}, want: "south is down: connections have only their direct path until it is back; " + undo},
		"closed":      {request: only("south"), now: []api.Waypoint{at("south", api.WaypointClosed)}, want: "south is closed: connections have only their direct path until it is back; " + undo},
		"not yet":     {request: only("south"), want: "south is not connected: connections have only their direct path until it is; " + undo},
		"both down":   {request: only("south", "east"), now: []api.Waypoint{down("south")}, want: "south is down, east is not connected: connections have only their direct path until one of them is back; " + undo},
		"one is up":   {request: only("south", "east"), now: []api.Waypoint{down("south"), up("east")}},
		"a tunnel":    {request: only("south"), now: []api.Waypoint{tunnel, down("south")}, want: "south is down: connections have only their direct path, and wireguard if that still works, until it is back; " + undo},
		"one address": {request: only("south"), now: []api.Waypoint{down("south"), up("south")}},
		"moving":      {request: only("south"), now: []api.Waypoint{at("south", api.WaypointMoving)}},
		"not only":    {request: api.SteerRequest{Word: api.SteerUse, Waypoints: []string{"south"}}, now: []api.Waypoint{down("south")}},
		"up":          {request: only("south"), now: []api.Waypoint{up("south")}},
		"as reset":    {request: api.SteerRequest{Word: api.SteerReset}, now: []api.Waypoint{down("south")}},
		"the setting": {settings: config.Client{Use: []string{"south"}, UseOnly: true}, request: api.SteerRequest{Word: api.SteerReset}, now: []api.Waypoint{down("south")}, want: "south is down: connections have only their direct path until it is back; `dcol config set client.use_only false`, then `dcol reload`, allows others"},
	} {
		s := newSteering(test.settings)
		if err := s.change(test.request, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if got := s.warning(test.now); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
