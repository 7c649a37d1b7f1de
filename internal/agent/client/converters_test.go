package client

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/agent/relaying"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// withConverters returns a configuration that uses converters as given.
func withConverters(use config.UseConverter) *config.Config {
	return &config.Config{Client: config.Client{Converter: config.Convert{Use: use}}}
}

// Offered are the converters of waypoints with a session that are not closed and that the operator wants, also while none is used.
func TestConvertersOffered(t *testing.T) {
	bob := func(addr string) detour.Via { return detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr(addr)} }
	dave := detour.Via{Waypoint: "dave", Addr: netip.MustParseAddr("192.0.2.9")}
	offers := session.State{Up: true, Offers: []wire.Kind{wire.InBand, wire.Converter}}
	closed, moving, detours := offers, offers, offers
	closed.Closed, moving.Moving, detours.Offers = &session.Closed{Code: wire.QuotaTraffic}, true, []wire.Kind{wire.InBand}
	c := newConverters(withConverters("never"))
	for i, step := range []struct {
		of   detour.Via
		says session.State
		want []string
	}{
		{bob("192.0.2.1"), detours, nil},
		{bob("192.0.2.1"), offers, []string{"bob"}},
		{bob("2001:db8::1"), offers, []string{"bob"}},
		{dave, offers, []string{"bob", "dave"}},
		{bob("192.0.2.1"), closed, []string{"bob", "dave"}},
		{bob("2001:db8::1"), moving, []string{"dave"}},
		{dave, session.State{}, nil},
	} {
		if c.sessionChanged(step.of, step.says); !slices.Equal(c.offers(), step.want) {
			t.Errorf("step %d: %v, not %v", i, c.offers(), step.want)
		}
	}
	c.sessionChanged(dave, offers)
	if c.will.Avoid = []string{"dave"}; len(c.offers()) > 0 {
		t.Errorf("not wanted: %v", c.offers())
	}
}

// A converter whose admission has expired is not used, and the nearest comes first.
func TestConvertersList(t *testing.T) {
	now := time.Now()
	c := newConverters(withConverters("auto"))
	for addr, x := range map[string]struct{ rtt, left time.Duration }{
		"192.0.2.1": {20 * time.Millisecond, time.Minute}, "192.0.2.2": {0, time.Minute}, "192.0.2.3": {time.Millisecond, -time.Second},
		"192.0.2.4": {10 * time.Millisecond, time.Minute},
	} {
		a := admittedConverter{expires: now.Add(x.left)}
		a.At, a.RTT = netip.AddrPortFrom(netip.MustParseAddr(addr), 5124), x.rtt
		c.admitted[detour.Via{Addr: a.At.Addr()}] = a
	}
	var got []string
	for _, x := range c.list(now) {
		got = append(got, x.At.Addr().String())
	}
	if want := []string{"192.0.2.4", "192.0.2.1", "192.0.2.2"}; len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%v, want %v", got, want)
	}
}

// confirmed is a relay that has confirmed the present orders.
func confirmed(c *converters, now time.Time) relaying.Standing {
	return relaying.Standing{Relay: &relay.Status{}, Use: c.orders(now, func() []netip.Prefix { return nil })}
}

// A converter is listed once the relay has confirmed it, and until the relay has another end of the tunnel, or none. As long, a
// gateway leads connections to it.
func TestConvertersConfirmed(t *testing.T) {
	now := time.Now()
	c := newConverters(withConverters(config.ConvertAuto))
	listed := func(s relaying.Standing) bool {
		listed := len(c.describe(now, func(netip.Addr) bool { return false }, s).Converters) > 0
		if taken := c.taken(now, s).Converters; taken != listed {
			t.Errorf("a converter is listed: %v; a gateway leads connections to it: %v", listed, taken)
		}
		return listed
	}
	before := confirmed(&c, now)
	bob := admittedConverter{relay.Converter{Name: "bob", At: netip.MustParseAddrPort("192.0.2.1:5124"), Cookie: []byte("1")}, now.Add(time.Hour)}
	admit := func() { c.setAdmitted(detour.Via{Waypoint: "bob", Addr: bob.At.Addr()}, bob) }
	admit()
	if listed(relaying.Standing{}) || listed(before) {
		t.Error("a converter is listed that the relay does not know")
	}
	has := confirmed(&c, now)
	if !listed(has) {
		t.Error("a converter is not listed that the relay has confirmed")
	}
	bob.Cookie = []byte("2")
	if admit(); !listed(has) {
		t.Error("a converter is not listed after its cookie was renewed")
	}
	bob.From = netip.MustParseAddr("10.192.0.1")
	if admit(); listed(has) || !listed(confirmed(&c, now)) {
		t.Error("a converter is called from an address that the relay does not know")
	}
}

// The status says which converter the relay leaves alone, until that is over.
func TestConvertersAside(t *testing.T) {
	now := time.Now()
	at := netip.MustParseAddrPort("192.0.2.1:5124")
	c := newConverters(withConverters(config.ConvertAuto))
	c.setAdmitted(detour.Via{Waypoint: "bob", Addr: at.Addr()}, admittedConverter{Converter: relay.Converter{Name: "bob", At: at}, expires: now.Add(time.Hour)})
	r := confirmed(&c, now)
	r.Relay.Aside = map[netip.AddrPort]choice.Aside{at: {Until: now.Add(time.Minute), Refuses: true}}
	for after, want := range map[time.Duration]bool{0: true, time.Minute: false} {
		x := c.describe(now.Add(after), func(netip.Addr) bool { return false }, r).Converters[0]
		if x.Refuses != want || x.AsideUntil.IsZero() == want {
			t.Errorf("after %v: %+v", after, x)
		}
	}
}

// Nothing is known any more of the converters of a waypoint that was left.
func TestConvertersForget(t *testing.T) {
	now := time.Now()
	bob := detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.1")}
	c := newConverters(withConverters(config.ConvertAuto))
	admission := admittedConverter{expires: now.Add(time.Minute)}
	if first, again := c.setAdmitted(bob, admission), c.setAdmitted(bob, admission); !first || again {
		t.Errorf("the first admission begins: %v, the second: %v", first, again)
	}
	c.sessionChanged(bob, session.State{Up: true, Offers: []wire.Kind{wire.Converter}})
	c.setRefused(bob, "expelled")
	c.setIncoming(bob, []api.Incoming{{Converter: "bob"}})
	has := confirmed(&c, now)
	sizes := func() []int {
		d := c.describe(now, func(netip.Addr) bool { return false }, has)
		return []int{len(d.Converters), len(d.Offered), len(d.Refused), len(d.Incoming)}
	}
	if got := sizes(); !slices.Equal(got, []int{1, 1, 1, 1}) {
		t.Errorf("before: %v of each", got)
	}
	c.forget([]detour.Via{bob})
	if got := sizes(); !slices.Equal(got, []int{0, 0, 0, 0}) {
		t.Errorf("afterwards: %v of each", got)
	}
}

// What is said of a server shows whether its connections may go to a converter, where they are then seen.
func TestConvertersWhy(t *testing.T) {
	now, bob := time.Now(), netip.MustParseAddrPort("192.0.2.7:5124")
	server := netip.MustParseAddr("203.0.113.5")
	for _, test := range map[string]struct {
		use      config.UseConverter
		admitted bool
		server   netip.Addr
		want     []string // words; none: nothing is said
	}{
		"always":             {config.ConvertAlways, true, server, []string{"192.0.2.7 (bob)", "unless"}},
		"auto":               {config.ConvertAuto, true, server, []string{"192.0.2.7 (bob)", "speak no MPTCP"}},
		"never":              {config.ConvertNever, true, server, nil},
		"no converter":       {config.ConvertAlways, false, server, nil},
		"the converter":      {config.ConvertAlways, true, bob.Addr(), nil},
		"an excluded server": {config.ConvertAlways, true, netip.MustParseAddr("10.1.2.3"), nil},
	} {
		settings := withConverters(test.use)
		settings.Client.Exclude = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		c := newConverters(settings)
		if test.admitted {
			c.setAdmitted(detour.Via{Waypoint: "bob", Addr: bob.Addr()}, admittedConverter{relay.Converter{Name: "bob", At: bob}, now.Add(time.Hour)})
		}
		got := c.why(test.server, now)
		for _, word := range test.want {
			if !strings.Contains(got, word) {
				t.Errorf("%+v: %q", test, got)
			}
		}
		if test.want == nil && got != "" {
			t.Errorf("%+v: %q", test, got)
		}
	}
}

// ordered is a relay that notes its orders.
type ordered struct {
	Relay
	state relay.State
}

func (o *ordered) Change(change func(*relay.State)) { change(&o.state) }

// alone is the router of a host without a network.
type alone struct{ router }

func (alone) OnLink() ([]netip.Prefix, error) { return nil, nil }

// Changed exclusions reach the relay without a restart. The mode that dcol convert has set stays.
func TestReloadedExclusions(t *testing.T) {
	c, _ := toldClient()
	r := &ordered{}
	c.config.Relay, c.config.Directory, c.host = r, &gossiping{}, &host{routes: alone{}}
	c.converters = newConverters(withConverters(config.ConvertNever))
	if err := c.converters.setUse(config.ConvertAuto); err != nil {
		t.Fatal(err)
	}
	before := c.converters.settings.Client
	for _, names := range [][]string{{"example.org"}, {"example.org", "example.net"}, nil} {
		next := before
		next.Converter.ExcludeDomains = names
		next.Exclude = make([]netip.Prefix, len(names)) // changes, too
		reloaded := make(chan error, 1)
		go func() { reloaded <- c.Reconfigure(t.Context(), before, next) }()
		(<-c.inbox.calls)(time.Now())
		if err := <-reloaded; err != nil {
			t.Fatal(err)
		}
		u := r.state.Use
		if u == nil || u.Mode != choice.Auto || !slices.Equal(u.ExcludeDomains, names) || len(u.Exclude) != len(names) {
			t.Errorf("excluded are %v, and the orders %+v", names, u)
		}
		before = next
	}
}
