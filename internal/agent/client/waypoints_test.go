package client

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// Whatever is wanted, and however long it takes until those left are gone: nobody is joined twice or while
// it is leaving, there is room for all, and in the end those are in use that are wanted.
func TestRosterChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		room := rapid.IntRange(0, 6).Draw(t, "room")
		have, leaving := map[string]config.Peer{}, map[string]config.Peer{}
		var want []config.Peer
		reconcile := func() {
			leave, join := rosterChanges(want, have, leaving, room-len(have)-len(leaving))
			for _, name := range leave {
				leaving[name] = have[name]
				delete(have, name)
			}
			for _, p := range join {
				_, is := have[p.Name]
				_, was := leaving[p.Name]
				if is || was {
					t.Fatalf("%s is joined twice", p.Name)
				}
				have[p.Name] = p
			}
			if len(have)+len(leaving) > room {
				t.Fatalf("%d are in use and %d leaving, with room for %d", len(have), len(leaving), room)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { reconcile() },
			"want": func(t *rapid.T) {
				want = nil
				for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(1, 9), 0, room, rapid.ID).Draw(t, "names") {
					port := rapid.IntRange(1, 2).Draw(t, "port")
					want = append(want, config.Peer{Name: fmt.Sprint("w", n), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(n)})}, Port: port})
				}
			},
			"gone": func(t *rapid.T) {
				if names := slices.Sorted(maps.Keys(leaving)); len(names) > 0 {
					delete(leaving, rapid.SampledFrom(names).Draw(t, "who"))
				}
			},
		})
		for range 2 {
			clear(leaving)
			reconcile()
		}
		if len(have) != len(want) {
			t.Fatalf("in use: %v, wanted: %v", have, want)
		}
		for _, p := range want {
			if !have[p.Name].Equal(p) {
				t.Fatalf("in use: %+v, wanted: %+v", have[p.Name], p)
			}
		}
	})
}

// listening notes what it hears of waypoints.
type listening struct {
	Directory
	heard []bool
}

func (l *listening) Heard(_ string, up bool) { l.heard = append(l.heard, up) }

// Who has chosen a waypoint hears of it only while there is a session and it gives something: one that is
// closed is to give its place to another.
func TestClosedWaypointIsNotHeardOf(t *testing.T) {
	bob := detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.7")}
	directory := &listening{}
	log := slog.New(slog.DiscardHandler)
	c := &Client{
		config: Config{Directory: directory}, tunnels: emptyTunnels(log), inbox: newInbox(1), log: log,
		manager: path.New(path.Config{Policy: policy.Detours{Subflows: 2}}), book: detour.New(policy.Kinds()),
		roster: newRoster(&config.Config{}), converters: newConverters(withConverters(config.ConvertNever)),
	}
	c.roster.sessions[bob] = &waypointSession{}
	c.roster.using["bob"] = &usedWaypoint{vias: []detour.Via{bob}}
	up := session.State{Up: true, Offers: []wire.Kind{wire.InBand}}
	closed := func(code wire.Code) session.State {
		s := up
		s.Closed = &session.Closed{Code: code}
		return s
	}
	for _, s := range []session.State{up, closed(wire.OutsideHours), up, closed(wire.QuotaTraffic), closed(wire.SwitchedOff), up, {}} {
		c.sessionChanged(t.Context(), bob, s)
		(<-c.inbox.calls)(time.Now())
	}
	if want := []bool{true, false, true, false, false, true, false}; !slices.Equal(directory.heard, want) {
		t.Errorf("heard %v, want %v", directory.heard, want)
	}
}

// When a waypoint withdraws a kind, the state says so and why. A kind that it never offered needs no reason.
func TestWithdrawnKindSaysWhy(t *testing.T) {
	bob := detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.7")}
	log := slog.New(slog.DiscardHandler)
	c := &Client{
		config: Config{Directory: &listening{}, Settings: &config.Config{}}, tunnels: emptyTunnels(log), inbox: newInbox(1), log: log,
		manager: path.New(path.Config{Policy: policy.Detours{Subflows: 2}}), book: detour.New(policy.Kinds()),
		roster: newRoster(&config.Config{}), converters: newConverters(withConverters(config.ConvertNever)),
	}
	c.config.Settings.Client.Kinds = []config.Kind{config.Mapped, config.WireGuard, config.OpenVPN}
	c.roster.sessions[bob] = &waypointSession{}
	c.roster.using["bob"] = &usedWaypoint{vias: []detour.Via{bob}}
	check := func(offers []wire.Kind, want map[path.Kind]bool) {
		t.Helper()
		c.sessionChanged(t.Context(), bob, session.State{Up: true, Offers: offers})
		(<-c.inbox.calls)(time.Now())
		for kind, withdrawn := range want {
			got := c.describeKind(bob, kind, c.book.State(bob), nil)
			if got.State != api.KindNotOffered || (got.Why != "") != withdrawn || withdrawn && !strings.Contains(got.Why, "withdrawn") {
				t.Errorf("%v is %s, %q; withdrawn: %v", kind, got.State, got.Why, withdrawn)
			}
		}
	}
	check([]wire.Kind{wire.Mapped, wire.WireGuard}, map[path.Kind]bool{path.OpenVPN: false})
	check([]wire.Kind{wire.Mapped}, map[path.Kind]bool{path.OpenVPN: false, path.WireGuard: true})
	check([]wire.Kind{wire.WireGuard}, map[path.Kind]bool{path.OpenVPN: false, path.Mapped: true})
}
