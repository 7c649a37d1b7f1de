package choice

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/converter/known"
)

var (
	start  = time.Unix(1_800_000_000, 0)
	server = netip.MustParseAddrPort("203.0.113.9:443")
	near   = netip.MustParseAddrPort("192.0.2.1:5124")
	far    = netip.MustParseAddrPort("192.0.2.2:5124")
)

func with(p Policy, converters ...netip.AddrPort) *Choice {
	c := New(p)
	c.SetConverters(converters)
	return c
}

func TestModes(t *testing.T) {
	for _, c := range []struct {
		mode    Mode
		support known.Support
		want    bool
	}{
		{Never, known.Unknown, false}, {Never, known.Plain, false}, {Never, known.MPTCP, false},
		{Auto, known.Unknown, false}, {Auto, known.Plain, true}, {Auto, known.MPTCP, false},
		{Always, known.Unknown, true}, {Always, known.Plain, true}, {Always, known.MPTCP, false},
	} {
		choice := with(Policy{Mode: c.mode}, near)
		if c.support != known.Unknown {
			choice.Learned(server, c.support == known.MPTCP, start)
		}
		if got := choice.Choose(Who{}, server, start); (got != nil) != c.want {
			t.Errorf("mode %d, support %d: %v", c.mode, c.support, got)
		}
		if got := choice.Choose(Who{}, server, start.Add(known.SpeaksFor)); (got != nil) != (c.mode == Always) {
			t.Errorf("mode %d, support %d, expired: %v", c.mode, c.support, got)
		}
	}
	if got := with(Policy{Mode: Always}).Choose(Who{}, server, start); got != nil {
		t.Errorf("without converters: %v", got)
	}
}

func TestGoesDirectly(t *testing.T) {
	c := with(Policy{
		Mode: Always, ExcludePorts: []uint16{22}, ExcludePrefixes: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("192.168.0.0/16")},
	}, near)
	c.Exclude(netip.MustParseAddr("203.0.113.10"), "example.org", start.Add(time.Minute), start)
	for to, want := range map[string]bool{
		"203.0.113.9:443": true, "[::ffff:203.0.113.9]:443": true, "[2001:db8::1]:443": true,
		"203.0.113.9:22": false, "198.51.100.7:443": false, "[::ffff:198.51.100.7]:443": false, "203.0.113.10:443": false,
		"127.0.0.1:443": false, "[::1]:443": false, "10.1.2.3:443": true, "192.168.1.1:443": false,
		"[::ffff:192.168.1.1]:443": false, "[fd00::1]:443": true, "[fe80::1%eth0]:443": false, "169.254.1.1:443": false,
		"224.0.0.1:443": false, "0.0.0.0:443": false, "0.1.2.3:443": false, "240.0.0.1:443": false, "255.255.255.255:443": false, "203.0.113.9:0": false, "192.0.2.1:443": false,
	} {
		if got := c.Choose(Who{}, netip.MustParseAddrPort(to), start); (got != nil) != want {
			t.Errorf("%s: %v", to, got)
		}
	}
	if c.Choose(Who{}, netip.MustParseAddrPort("203.0.113.10:443"), start.Add(time.Minute)) == nil {
		t.Error("excluded for longer than asked")
	}
	c.SetPolicy(Policy{Mode: Always})
	if c.Choose(Who{}, netip.MustParseAddrPort("203.0.113.9:22"), start) == nil {
		t.Error("excluded by the policy before")
	}
}

// FTP's control connections are converted only together with the data connections, whose ports are not known before.
func TestFTP(t *testing.T) {
	for mode, want := range map[Mode]bool{Auto: false, Always: true} {
		c := with(Policy{Mode: mode}, near)
		for _, port := range []uint16{21, 443} {
			to := netip.AddrPortFrom(server.Addr(), port)
			c.Learned(to, false, start)
			if got := c.Choose(Who{}, to, start); (got != nil) != (want || port != 21) {
				t.Errorf("mode %d, port %d: %v", mode, port, got)
			}
		}
	}
}

// A converter that fails is left alone for ever longer. One success makes it as good as new.
func TestBackoff(t *testing.T) {
	c, now := with(Policy{Mode: Always}, near, far), start
	for _, seconds := range []int{5, 10, 20, 40, 80, 160, 300, 300} {
		pause := time.Duration(seconds) * time.Second
		c.Failed(near, 0, now)
		c.Failed(near, 0, now.Add(pause/2)) // of a connection that had begun before
		if got := c.Choose(Who{}, server, now.Add(pause-1)); !slices.Equal(got, []netip.AddrPort{far}) {
			t.Errorf("before %v: %v", pause, got)
		}
		if now = now.Add(pause); !slices.Contains(c.Choose(Who{}, server, now), near) {
			t.Errorf("not after %v", pause)
		}
	}
	c.Carried(near, server, 1, 1, now)
	c.Failed(near, 0, now)
	if !slices.Contains(c.Choose(Who{}, server, now.Add(backoffLeast)), near) {
		t.Error("a success is not remembered")
	}
	c.SetConverters([]netip.AddrPort{far, near, far})
	if got := c.Choose(Who{}, server, now); !slices.Equal(got, []netip.AddrPort{far}) {
		t.Errorf("after the list was replaced: %v", got)
	}
	// A converter may want to be left alone for longer, but not for ever.
	for wants, want := range map[time.Duration]time.Duration{time.Second: backoffLeast, 30 * time.Second: 30 * time.Second, time.Hour: backoffMost} {
		c := with(Policy{Mode: Always}, near)
		c.Failed(near, wants, start)
		if c.Choose(Who{}, server, start.Add(want-1)) != nil || c.Choose(Who{}, server, start.Add(want)) == nil {
			t.Errorf("wants %v: not left alone for %v", wants, want)
		}
	}
}

// Servers that never answer, or for which it refuses connections, take the converter from no other server, however many
// they are. Only its own answer shows whether it works.
func TestUnserved(t *testing.T) {
	other := netip.AddrPortFrom(server.Addr().Next(), server.Port())
	third := netip.AddrPortFrom(other.Addr().Next(), server.Port())
	c, now := with(Policy{Mode: Always}, near, far), start
	want := func(to netip.AddrPort, after time.Duration, want bool) {
		t.Helper()
		if got := c.Choose(Who{}, to, now.Add(after)); slices.Contains(got, near) != want || !slices.Contains(got, far) {
			t.Errorf("to %v after %v: %v", to, after, got)
		}
	}
	for i := range 5 { // again and again
		c.Unserved(near, server, now.Add(time.Duration(i)*time.Second))
		c.Unserved(near, other, now.Add(time.Duration(i)*time.Second))
	}
	want(server, 5*time.Second, false)
	want(netip.AddrPortFrom(server.Addr(), 22), 5*time.Second, false)
	want(other, 5*time.Second, false)
	want(third, 5*time.Second, true)
	want(server, 4*time.Second+unservedFor, true)

	suspect := func(after time.Duration, want bool) {
		t.Helper()
		if got := c.Suspect(near, now.Add(after)); got != want {
			t.Errorf("after %v: asked %v", after, got)
		}
	}
	suspect(0, true)
	suspect(suspectPause-1, false)
	c.Checked(near, true, 0, now.Add(time.Second))
	want(third, time.Second, true)
	suspect(suspectPause, true)
	c.Carried(near, third, 1, 1, now.Add(suspectPause+1)) // it connects to a server, but has no place for questions
	c.Checked(near, false, 0, now.Add(suspectPause+2))
	want(third, suspectPause+2, true)
	now = now.Add(time.Hour)
	suspect(0, true)
	c.Checked(near, false, 0, now)
	want(third, backoffLeast-1, false)
	suspect(backoffLeast-1, false)
	want(third, backoffLeast, true)
	if c.Trust(near, now.Add(backoffLeast)) {
		t.Error("a converter that is silent is trusted")
	}
	unknown := netip.MustParseAddrPort("192.0.2.99:1")
	c.Unserved(unknown, server, now)
	c.Checked(unknown, false, 0, now)
	if c.Suspect(unknown, now) {
		t.Error("an unknown converter is asked")
	}
}

// A converter that refuses one server after the other is not used, each time for longer. Repeated refusals of the same
// server show nothing, and one connection shows that the converter works.
func TestRefused(t *testing.T) {
	c, now, last := with(Policy{Mode: Always}, near, far), start, byte(0)
	refuse := func() (refused netip.AddrPort) { // another server
		last++
		refused = netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, last}), 443)
		c.Refused(near, refused, now)
		return refused
	}
	aside := func(want bool) {
		t.Helper()
		if got := !slices.Contains(c.Choose(Who{}, server, now), near); got != want || c.Aside(now)[near].Refuses != want || len(c.Aside(now)) > 1 {
			t.Errorf("left alone: %v, want %v; %v", got, want, c.Aside(now))
		}
	}
	first := refuse()
	for port := range uint16(100) {
		c.Refused(near, netip.AddrPortFrom(first.Addr(), port), now)
	}
	for range refusalsMost - 2 {
		refuse()
	}
	aside(false)
	if slices.Contains(c.Choose(Who{}, first, now), near) {
		t.Error("it is asked again for a server that it refused")
	}
	c.Carried(near, server, 1, 1, now)
	for range refusalsMost - 1 {
		refuse()
	}
	aside(false)
	again := refuse()
	refuse() // a connection that had begun before
	aside(true)
	for _, pause := range []time.Duration{backoffLeast, 2 * backoffLeast, 4 * backoffLeast} {
		now = now.Add(pause - 1)
		aside(true)
		now = now.Add(1)
		aside(false)
		c.Refused(near, again, now)
		aside(false)
		again = refuse()
		aside(true)
	}
	now = now.Add(backoffMost)
	c.Carried(near, server, 1, 1, now)
	refuse()
	aside(false)
}

// A converter is not used if one server after the other says nothing through it. One that speaks shows that the converter
// works, unlike another that it only says to have reached.
func TestSilent(t *testing.T) {
	c, now := with(Policy{Mode: Always}, near, far), start
	silent := func(last byte) {
		s := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, last}), 443)
		c.Carried(near, s, 1, 1, now)
		c.Account(Who{}, now).Silent(near, s, now)
		if slices.Contains(c.Choose(Who{}, s, now), near) {
			t.Errorf("%v is asked for again", s)
		}
	}
	aside := func(want bool) {
		t.Helper()
		if got := !slices.Contains(c.Choose(Who{}, server, now), near); got != want || c.Aside(now)[near].Refuses != want {
			t.Errorf("left alone: %v, want %v; %v", got, want, c.Aside(now))
		}
	}
	for range 10 {
		silent(1)
	}
	for last := range byte(refusalsMost - 1) {
		silent(last)
	}
	aside(false)
	c.Account(Who{}, now).Spoke(near)
	for last := range byte(refusalsMost - 1) {
		silent(last)
	}
	aside(false)
	silent(refusalsMost)
	aside(true)
	last := byte(refusalsMost)
	for _, pause := range []time.Duration{backoffLeast, 2 * backoffLeast, 4 * backoffLeast} {
		c.Carried(near, server, 1, 1, now) // says the converter
		now = now.Add(pause - 1)
		aside(true)
		now = now.Add(1)
		aside(false)
		last++
		silent(last)
		aside(true)
	}
	c.Account(Who{}, now).Spoke(netip.MustParseAddrPort("192.0.2.99:1")) // an unknown converter
	aside(true)
	c.Account(Who{}, now).Spoke(near)
	aside(false)
}

// Connections to a server that could not be reached at all go directly for a while, so that programs see the server's
// own errors. That does not concern other ports.
func TestUnreached(t *testing.T) {
	c := with(Policy{Mode: Always}, near)
	c.Unreached(netip.AddrPortFrom(netip.AddrFrom16(server.Addr().As16()), server.Port()), start)
	for _, s := range []struct {
		to    netip.AddrPort
		after time.Duration
		want  bool
	}{{server, UnreachedFor - 1, false}, {server, UnreachedFor, true}, {netip.AddrPortFrom(server.Addr(), 81), 0, true}} {
		if got := c.Choose(Who{}, s.to, start.Add(s.after)); (got != nil) != s.want {
			t.Errorf("%v after %v: %v", s.to, s.after, got)
		}
	}
}

// A converter that has just worked is trusted until a connection that trusted it waits too long.
func TestTrust(t *testing.T) {
	c, now := with(Policy{Mode: Always}, near, far), start
	trust := func(after time.Duration, want bool) {
		t.Helper()
		if got := c.Trust(near, now.Add(after)); got != want {
			t.Errorf("after %v: %v", after, got)
		}
	}
	trust(0, false) // nothing is known of it
	c.Carried(near, server, 1, 1, now)
	trust(trustFor-trustAnswers, true)
	trust(trustFor-1, true)
	trust(trustFor, false)

	c.Carried(near, server, 1, 1, now)
	trust(time.Second, true) // and waits from here on
	trust(time.Second+trustAnswers-1, true)
	trust(time.Second+trustAnswers, false)
	trust(2*time.Second, false)
	c.Carried(near, server, 1, 1, now.Add(2*time.Second))
	trust(3*time.Second, true)
	c.Failed(near, 0, now.Add(3*time.Second))
	trust(3*time.Second, false)
	trust(5*time.Minute, false)
	if c.Trust(far, now) || c.Trust(server, now) {
		t.Error("nothing is known of the other")
	}
}

func TestNearest(t *testing.T) {
	const ms = time.Millisecond
	c := with(Policy{Mode: Always}, far, near)
	other := netip.MustParseAddrPort("203.0.113.200:80")
	order := func(to netip.AddrPort, want ...netip.AddrPort) {
		t.Helper()
		if got := c.Choose(Who{}, to, start); !slices.Equal(got, want) {
			t.Errorf("to %v: %v, want %v", to, got, want)
		}
	}
	order(server, far, near) // as listed
	c.Carried(far, server, 30*ms, 40*ms, start)
	order(server, near, far) // near is not measured yet
	c.Carried(near, server, 10*ms, 90*ms, start)
	order(server, far, near) // far is nearer to this server
	order(other, near, far)  // of which nothing is known
	c.Carried(near, other, 10*ms, 25*ms, start)
	order(other, near, far) // far cannot be better: it takes 30 ms to get there
	order(netip.AddrPortFrom(server.Addr(), 80), far, near)
	if got := c.Choose(Who{}, server, start.Add(timesFor)); !slices.Equal(got, []netip.AddrPort{near, far}) {
		t.Errorf("expired: %v", got)
	}
}

// TestAnySequence checks after any sequence of events what must always hold.
func TestAnySequence(t *testing.T) {
	all := []netip.AddrPort{near, far, netip.MustParseAddrPort("[2001:db8::5]:5124")}
	servers := []netip.AddrPort{
		server, netip.MustParseAddrPort("[2001:db8::80]:80"), netip.MustParseAddrPort("192.168.0.1:80"),
		netip.AddrPortFrom(near.Addr(), 80), netip.MustParseAddrPort("203.0.113.10:22"),
	}
	never := []netip.AddrPort{
		netip.MustParseAddrPort("127.0.0.1:80"), netip.MustParseAddrPort("[fe80::1]:80"), netip.MustParseAddrPort("255.255.255.255:80"),
		netip.MustParseAddrPort("0.1.2.3:80"), netip.MustParseAddrPort("203.0.113.10:0"),
	}
	rapid.Check(t, func(t *rapid.T) {
		c, now := New(Policy{}), start
		policy, present := Policy{}, []netip.AddrPort(nil)
		down := map[netip.AddrPort]time.Time{}
		pick := func(t *rapid.T, from []netip.AddrPort) netip.AddrPort {
			return rapid.SampledFrom(from).Draw(t, "which")
		}
		t.Repeat(map[string]func(*rapid.T){
			"policy": func(t *rapid.T) {
				policy = Policy{Mode: rapid.SampledFrom([]Mode{Never, Auto, Always}).Draw(t, "mode"), ExcludePorts: []uint16{22}, ExcludePrefixes: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}}
				c.SetPolicy(policy)
			},
			"converters": func(t *rapid.T) {
				present = rapid.SliceOfNDistinct(rapid.SampledFrom(all), 0, 3, rapid.ID[netip.AddrPort]).Draw(t, "converters")
				c.SetConverters(present)
				for v := range down {
					if !slices.Contains(present, v) {
						delete(down, v)
					}
				}
			},
			"exclude":   func(t *rapid.T) { c.Exclude(pick(t, servers).Addr(), "example.org", now.Add(time.Minute), now) },
			"unreached": func(t *rapid.T) { c.Unreached(pick(t, servers), now) },
			"learned":   func(t *rapid.T) { c.Learned(pick(t, servers), rapid.Bool().Draw(t, "MPTCP"), now) },
			"failed": func(t *rapid.T) {
				v := pick(t, all)
				c.Failed(v, 0, now)
				if slices.Contains(present, v) && !now.Before(down[v]) {
					down[v] = now.Add(backoffLeast) // at least
				}
			},
			"refused": func(t *rapid.T) { c.Refused(pick(t, all), pick(t, servers), now) },
			"carried": func(t *rapid.T) {
				v := pick(t, all)
				rtt := time.Duration(rapid.IntRange(1, 100).Draw(t, "rtt"))
				c.Carried(v, pick(t, servers), rtt, 2*rtt, now)
				delete(down, v)
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 600).Draw(t, "seconds")) * time.Second)
			},
			"": func(t *rapid.T) {
				table := c.Table(now)
				for _, s := range slices.Concat(servers, never) {
					got := c.Choose(Who{}, s, now)
					if converts(table, s) != (len(got) > 0) {
						t.Fatalf("%v goes through %v, by the table %+v", s, got, table)
					}
					support := c.servers.Support(s, now)
					switch {
					case len(got) == 0:
					case policy.Mode == Never, support == known.MPTCP, policy.Mode == Auto && support != known.Plain:
						t.Fatalf("%v is converted with mode %d and support %d", s, policy.Mode, support)
					case s.Port() == 22, slices.Contains(never, s), s.Addr() == netip.MustParseAddr("192.168.0.1"), slices.Contains(present, near) && s.Addr() == near.Addr():
						t.Fatalf("%v is converted", s)
					}
					for i, v := range got {
						if !slices.Contains(present, v) || slices.Contains(got[:i], v) || now.Before(down[v]) {
							t.Fatalf("%v among %v, known are %v", v, got, present)
						}
					}
				}
			},
		})
	})
}

// converts reports whether, according to a Table, connections to a server go through a converter.
func converts(t Table, server netip.AddrPort) bool {
	for p := range t.Networks {
		if p.Contains(server.Addr()) {
			return false
		}
	}
	_, port := t.Ports[server.Port()]
	_, listed := t.Servers[server]
	return !port && listed != t.Others
}

func TestExcludesName(t *testing.T) {
	p := Policy{ExcludeDomains: []string{"example.org", "Sub.Example.net."}}
	for name, want := range map[string]bool{
		"example.org": true, "www.example.org": true, "a.b.EXAMPLE.org.": true, "sub.example.net": true, "x.sub.example.net": true,
		"example.net": false, "notexample.org": false, "example.org.net": false, "org": false, "": false,
	} {
		if got := p.ExcludesName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// A LAN's host keeps its IPv6 address if the user wants that, and if servers could answer it.
func TestSource(t *testing.T) {
	for _, test := range []struct {
		host string
		keep bool
		want string
	}{
		{"2001:db8::7", true, "2001:db8::7"}, {"fd01::7", true, "fd01::7"}, {"2001:db8::7", false, ""}, {"192.0.2.7", true, ""},
		{"::ffff:192.0.2.7", true, ""}, {"fe80::7", true, ""}, {"::1", true, ""}, {"", true, ""},
	} {
		var host, want netip.Addr
		if test.host != "" {
			host = netip.MustParseAddr(test.host)
		}
		if test.want != "" {
			want = netip.MustParseAddr(test.want)
		}
		if got := New(Policy{KeepIPv6: test.keep}).Source(host); got != want {
			t.Errorf("keep %t: %v connects from %v, want %v", test.keep, host, got, want)
		}
	}
}

// TestIsPlain: what was learned of a server counts whatever the mode, and in both notations of its address.
func TestIsPlain(t *testing.T) {
	c := New(Policy{Mode: Always})
	plain, speaks := netip.MustParseAddrPort("203.0.113.1:80"), netip.MustParseAddrPort("203.0.113.2:80")
	mapped := netip.MustParseAddrPort("[::ffff:203.0.113.1]:80")
	now := time.Unix(1_800_000_000, 0)
	if c.IsPlain(plain, now) {
		t.Error("plain before anything is known")
	}
	c.Learned(mapped, false, now)
	c.Learned(speaks, true, now)
	if !c.IsPlain(plain, now) || !c.IsPlain(mapped, now) || c.IsPlain(speaks, now) {
		t.Error("what was learned is not known")
	}
	if c.IsPlain(plain, now.Add(known.PlainFor)) {
		t.Error("known for ever")
	}
}
