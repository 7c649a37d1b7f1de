package detour

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

var (
	start   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	bob     = Via{"bob", netip.MustParseAddr("192.0.2.7")}
	bob6    = Via{"bob", netip.MustParseAddr("2001:db8::7")}
	carol   = Via{"carol", netip.MustParseAddr("192.0.2.8")}
	server  = netip.MustParseAddrPort("203.0.113.5:443")
	server6 = netip.MustParseAddrPort("[2001:db8:5::5]:443")
	tenMin  = Grant{Port: 443, Lease: 9 * time.Minute}
)

func after(d time.Duration) time.Time { return start.Add(d) }

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func offered(v Via, s netip.AddrPort, port uint16) path.Event {
	return path.DetourOffered{Detour: path.Detour{
		ID: id(v, s, port), Kind: path.Mapped, Waypoint: v.Waypoint,
		Remote: netip.AddrPortFrom(v.Addr, port), Server: s,
	}}
}

func TestEveryWaypointOfTheFamilyIsAskedOnce(t *testing.T) {
	b := New(nil)
	want(t, "nobody is up", b.Request(server, start), []Ask(nil))
	for _, v := range []Via{carol, bob, bob6} {
		want(t, "up", b.Up(v), []path.Event{path.WaypointReady{Waypoint: v.Waypoint, Addr: v.Addr}})
	}
	want(t, "IPv4", b.Request(server, start), []Ask{{bob, server}, {carol, server}})
	want(t, "IPv6", b.Request(server6, start), []Ask{{bob6, server6}})
	want(t, "while asking", b.Request(server, start), []Ask(nil))
	want(t, "grant", b.Granted(Ask{bob, server}, tenMin, start), []path.Event{offered(bob, server, 443)})
	want(t, "while granted", b.Request(server, start), []Ask(nil))
}

func TestLeaseInUseIsRenewedAndOthersLapse(t *testing.T) {
	b := New(nil)
	b.Up(bob)
	a := b.Request(server, start)[0]
	b.Granted(a, tenMin, start)
	next, _ := b.Next()
	want(t, "looked at", next, after(6*time.Minute))

	b.Request(server, after(time.Minute)) // somebody connected there
	asks, events := b.Due(after(6 * time.Minute))
	want(t, "renewal", asks, []Ask{a})
	want(t, "events", events, []path.Event(nil))
	want(t, "same port", b.Granted(a, tenMin, after(6*time.Minute)), []path.Event{offered(bob, server, 443)})

	asks, events = b.Due(after(12 * time.Minute)) // nobody connected since
	want(t, "no renewal", asks, []Ask(nil))
	want(t, "still on offer", events, []path.Event(nil))
	_, events = b.Due(after(15 * time.Minute))
	want(t, "off offer", events, []path.Event{path.DetourWithdrawn{ID: id(bob, server, 443)}})
	_, ok := b.Next()
	want(t, "nothing left to do", ok, false)
	want(t, "asked anew", b.Request(server, after(16*time.Minute)), []Ask{a})
}

func TestUsedAfterRenewalTimeIsRenewedAtOnce(t *testing.T) {
	b := New(nil)
	b.Up(bob)
	a := b.Request(server, start)[0]
	b.Granted(a, tenMin, start)
	b.Due(after(6 * time.Minute))
	want(t, "asked", b.Request(server, after(7*time.Minute)), []Ask{a})
}

func TestAnotherPortReplacesTheDetour(t *testing.T) {
	b := New(nil)
	b.Up(bob)
	a := b.Request(server, start)[0]
	b.Granted(a, tenMin, start)
	b.Request(server, after(7*time.Minute))
	want(t, "events", b.Granted(a, Grant{Port: 20001, Lease: time.Minute}, after(7*time.Minute)),
		[]path.Event{path.DetourWithdrawn{ID: id(bob, server, 443)}, offered(bob, server, 20001)})
}

func TestRefusals(t *testing.T) {
	other := netip.MustParseAddrPort("203.0.113.6:443")
	for _, test := range []struct {
		name         string
		refusal      Refusal
		quiet, again time.Duration // not asked at, asked at
		otherServer  bool          // another server may be asked for meanwhile
	}{
		{"no time named", Refusal{Why: "no"}, 29 * time.Second, 30 * time.Second, true},
		{"its own time", Refusal{Why: "no", For: time.Hour}, 59 * time.Minute, time.Hour, true},
		{"all", Refusal{Why: "rate", For: time.Minute, All: true}, 59 * time.Second, time.Minute, false},
		{"unanswered", Refusal{Why: "lost", Unanswered: true}, 2 * time.Second, 3 * time.Second, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := New(nil)
			b.Up(bob)
			a := b.Request(server, start)[0]
			want(t, "events", b.Refused(a, test.refusal, start), []path.Event(nil))
			want(t, "why", b.State(bob).Refused, test.refusal.Why)
			want(t, "why of this server", b.Refusal(bob, server, after(test.quiet)), test.refusal.Why)
			want(t, "why of another server", b.Refusal(bob, other, after(test.quiet)), "")
			want(t, "why later", b.Refusal(bob, server, after(test.again)), "")
			want(t, "quiet", b.Request(server, after(test.quiet)), []Ask(nil))
			want(t, "other server", len(b.Request(other, after(test.quiet))) == 1, test.otherServer)
			want(t, "again", b.Request(server, after(test.again)), []Ask{a})
		})
	}
}

func TestRefusedRenewalKeepsTheGrant(t *testing.T) {
	b := New(nil)
	b.Up(bob)
	a := b.Request(server, start)[0]
	b.Granted(a, tenMin, start)
	b.Request(server, after(time.Minute))
	b.Due(after(6 * time.Minute))
	b.Refused(a, Refusal{Why: "quota", For: time.Hour}, after(6*time.Minute))
	_, events := b.Due(after(8 * time.Minute))
	want(t, "not yet", events, []path.Event(nil))
	_, events = b.Due(after(9 * time.Minute))
	want(t, "lease over", events, []path.Event{path.DetourWithdrawn{ID: id(bob, server, 443)}})
}

func TestDownWithdrawsAndLateAnswersAreIgnored(t *testing.T) {
	b := New(nil)
	b.Up(bob)
	a := b.Request(server, start)[0]
	b.Granted(a, tenMin, start)
	late := Ask{bob, netip.MustParseAddrPort("203.0.113.9:80")}
	b.Request(late.Server, start)
	want(t, "down", b.Down(bob), []path.Event{
		path.WaypointLost{Waypoint: "bob", Addr: bob.Addr}, path.DetourWithdrawn{ID: id(bob, server, 443)},
	})
	want(t, "down again", b.Down(bob), []path.Event(nil))
	want(t, "late grant", b.Granted(late, tenMin, start), []path.Event(nil))
	want(t, "not asked", b.Request(server, start), []Ask(nil))
	b.Up(bob)
	want(t, "asked anew", b.Request(server, start), []Ask{a})
}

func TestSlowWaypointIsNotFlooded(t *testing.T) {
	b := New(nil)
	b.Up(bob)
	asked := 0
	for i := range 2 * maxAsking {
		asked += len(b.Request(netip.AddrPortFrom(server.Addr(), uint16(i+1)), start))
	}
	want(t, "requests under way", asked, maxAsking)
}

// Whatever happens, the path manager's view follows the book: a detour is offered at most once between withdrawals, and
// in the end nothing is left over.
func TestBookInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, now := New(nil), start
		onOffer := map[path.DetourID]bool{}
		of := map[path.DetourID]string{}
		var asking []Ask
		take := func(events []path.Event) {
			for _, ev := range events {
				switch ev := ev.(type) {
				case path.DetourOffered:
					if onOffer[ev.Detour.ID] && ev.Detour.Kind != path.Mapped { // a renewal
						t.Fatalf("%s offered twice", ev.Detour.ID)
					}
					onOffer[ev.Detour.ID], of[ev.Detour.ID] = true, ev.Detour.Waypoint
				case path.DetourWithdrawn:
					if !onOffer[ev.ID] {
						t.Fatalf("%s withdrawn and was not on offer", ev.ID)
					}
					delete(onOffer, ev.ID)
				case path.WaypointLeft:
					maps.DeleteFunc(onOffer, func(id path.DetourID, _ bool) bool { return of[id] == ev.Waypoint })
				}
			}
		}
		vias := []Via{bob, carol}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			v := rapid.SampledFrom(vias).Draw(t, "via")
			switch rapid.IntRange(0, 8).Draw(t, "what") {
			case 0:
				take(b.Up(v))
			case 1:
				take(b.Down(v))
			case 2:
				s := netip.AddrPortFrom(server.Addr(), uint16(rapid.IntRange(1, 3).Draw(t, "port")))
				asking = append(asking, b.Request(s, now)...)
			case 3, 4:
				if len(asking) > 0 {
					a := asking[0]
					asking = asking[1:]
					if rapid.Bool().Draw(t, "yes") {
						take(b.Granted(a, Grant{uint16(rapid.IntRange(1, 2).Draw(t, "at")), time.Minute}, now))
					} else {
						b.Refused(a, Refusal{Why: "no", For: 10 * time.Second}, now)
					}
				}
			case 5:
				now = now.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "seconds")) * time.Second)
				asks, events := b.Due(now)
				asking = append(asking, asks...)
				take(events)
			case 6:
				take(b.Opened(v, rapid.SampledFrom([]Tunnel{home, abroad, wg, ovpn}).Draw(t, "tunnel"), now))
			case 7:
				take(b.Closed(v, rapid.SampledFrom(policy.Kinds()).Draw(t, "kind")))
			case 8:
				take(b.Leave(v))
				if s := b.State(v); s.Up || s.Mappings > 0 || len(s.Tunnels) > 0 {
					t.Fatalf("left, and there is %+v", s)
				}
			}
			has := 0
			for _, v := range vias {
				s := b.State(v)
				has += s.Mappings + len(s.Tunnels)
			}
			if has != len(onOffer) {
				t.Fatalf("the book has %d detours, %d are on offer", has, len(onOffer))
			}
		}
		for _, v := range vias {
			for _, k := range policy.Kinds() {
				take(b.Closed(v, k))
			}
		}
		for _, a := range asking {
			b.Refused(a, Refusal{Why: "end"}, now)
		}
		for range 3 { // lease, refusal, rest
			now = now.Add(time.Hour)
			_, events := b.Due(now)
			take(events)
		}
		if _, left := b.Next(); left || len(onOffer) > 0 {
			t.Fatalf("left over: due %v, on offer %v", b.due, onOffer)
		}
	})
}
