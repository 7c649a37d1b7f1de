package relay

import (
	"context"
	"crypto/rand"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/converter/capture"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/client"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/handshakes"
	"github.com/detour-collective/dcol/internal/converter/names"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

const (
	// directFor is the time for which a program connects directly to a server without asking again.
	directFor = time.Second
	// loopback4 and loopback6 are the listeners' addresses to which programs' connections are redirected and a LAN's
	// connections are led by TPROXY. No other host reaches them.
	loopback4 = "127.0.0.1:0"
	loopback6 = "[::1]:0"
)

// user connects the programs of this host to converters.
type user struct {
	client  *client.Client
	running context.Context    // until stop is called
	stop    context.CancelFunc // stops answering questions and watching names
	names   context.CancelFunc // stops watching names; nil: none are watched

	mu       sync.Mutex
	cookies  map[netip.AddrPort][]byte // by converter
	members  map[netip.AddrPort]string // that offer the converters, by converter
	ways     ways
	expected ask.Expectations
	waiters  cookie.Key        // seals the cookies of programs that wait for the relay's answer
	heard    *handshakes.Table // of this host's connections; nil: nobody learns from them
	captured *capture.Capture  // knows the servers of connections that were led here unannounced; nil: none are
	at4, at6 netip.AddrPort    // to which connections are redirected; zero: none are
	programs []string          // paths of executables whose connections go directly

	led *led
}

// ways holds the settings of sockets that call converters.
type ways struct {
	mark uint32                        // of these sockets, which call through tunnels; 0: no tunnels
	from map[netip.AddrPort]netip.Addr // by converter
}

// use makes the relay lead programs to converters.
func (r *relay) use(u Use) {
	policy := choice.Policy{
		Mode: u.Mode, ExcludePrefixes: u.Exclude, ExcludePorts: u.ExcludePorts, ExcludeDomains: u.ExcludeDomains, KeepIPv6: u.KeepIPv6, FastOpen: u.FastOpen,
	}
	if r.user == nil {
		r.user = r.newUser(policy)
	}
	x := r.user
	cookies, members, to := make(map[netip.AddrPort][]byte), make(map[netip.AddrPort]string), ways{u.TunnelMark, make(map[netip.AddrPort]netip.Addr)}
	var addrs []netip.AddrPort
	for _, c := range u.Converters {
		cookies[c.At], members[c.At], to.from[c.At] = c.Cookie, c.Name, c.From
		addrs = append(addrs, c.At)
	}
	x.mu.Lock()
	x.cookies, x.members, x.ways = cookies, members, to
	x.mu.Unlock()
	x.client.Update(func(c *choice.Choice) {
		c.SetPolicy(policy)
		c.SetConverters(addrs)
	})
	r.overhear(x, u)
	r.watchNames(x, len(u.ExcludeDomains) > 0)
	front := always(x.client.Redirected(x.take, x.client.Waiting(x.waiter)))
	at4 := r.keep(PartPrograms4, entrance{address: loopback4, front: front})
	at6 := r.keep(PartPrograms6, entrance{address: loopback6, front: front})
	x.mu.Lock()
	x.at4, x.at6, x.programs = at4.bound, at6.bound, withTargets(u.ExcludePrograms)
	x.mu.Unlock()
	if u.Proxy == "" {
		r.drop(PartProxy)
	} else {
		r.keep(PartProxy, entrance{address: u.Proxy, front: always(x.client.Proxy())})
	}
	r.capture(x, u.Capture)
	if len(u.Gateway) == 0 {
		r.closeGateway()
	} else {
		front := func(port uint16) engine.Front { return x.client.Transparent(port, u.UnreachedMark) }
		r.keep(PartGateway4, entrance{address: loopback4, transparent: true, front: front})
		r.keep(PartGateway6, entrance{address: loopback6, transparent: true, front: front})
	}
}

// closeGateway stops accepting connections of a LAN, and ends the open ones, because nothing leads their packets here
// any more.
func (r *relay) closeGateway() {
	for _, name := range []string{PartGateway4, PartGateway6} {
		if p := r.parts[name]; p != nil {
			p.stop()
		}
		r.drop(name)
	}
}

// newUser starts answering the questions of this host's programs.
func (r *relay) newUser(policy choice.Policy) *user {
	ctx, stop := context.WithCancel(r.engines)
	x := &user{running: ctx, stop: stop, led: r.led}
	_, _ = rand.Read(x.waiters[:]) // cannot fail
	x.client = client.New(client.Config{Policy: policy, Cookie: x.cookie, Way: x.way, Heard: x.plainSince, Led: r.led.note, Excluded: x.excluded})
	l, err := ask.Listen(filepath.Join(r.config.Dir, ask.SocketName))
	if err != nil {
		r.log.Error("programs of dcol run are not converted", "err", err)
		return x
	}
	r.group.Go(func() error { return ask.Serve(ctx, l, x) })
	return x
}

// watchNames makes connections to addresses of excluded domains go directly, if DNS answers show the addresses.
func (r *relay) watchNames(x *user, wanted bool) {
	switch {
	case !wanted && x.names != nil:
		x.names()
		x.names = nil
	case wanted && x.names == nil:
		ctx, stop := context.WithCancel(x.running)
		x.names = stop // even if watching fails, so that the failure is logged once
		watcher, err := names.Open()
		if err != nil {
			r.log.Error("excluded domains are known to the proxy only", "err", err)
			return
		}
		r.group.Go(func() error {
			if err := watcher.Run(ctx, x.client.ExcludesName, x.exclude); err != nil {
				r.log.Error("addresses of excluded domains are not learned any more", "err", err)
			}
			return nil
		})
	}
}

// exclude makes connections to addresses go directly.
func (x *user) exclude(list []names.Address) {
	now := time.Now()
	x.client.Update(func(c *choice.Choice) {
		for _, a := range list {
			c.Exclude(a.Addr, a.Name, now.Add(a.For), now)
		}
	})
	x.excluded()
}

// excluded tells the kernel that addresses were excluded.
func (x *user) excluded() {
	if c := x.captures(); c != nil {
		c.Changed()
	}
}

func (x *user) captures() *capture.Capture {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.captured
}

// unuse stops leading connections to converters. Open connections continue, except those of a LAN.
func (r *relay) unuse() {
	if r.user == nil {
		return
	}
	r.release()
	r.user.stop()
	r.user = nil
	for _, name := range []string{PartPrograms4, PartPrograms6, PartProxy} {
		r.drop(name)
	}
	r.closeGateway()
}

func (x *user) cookie(converter netip.AddrPort) []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.cookies[converter]
}

// way implements client.Config.Way. ok is false if the converter's tunnel has ended meanwhile.
func (x *user) way(converter netip.AddrPort) (client.Way, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	from := x.ways.from[converter]
	return client.Way{Local: from, Mark: x.ways.mark}, x.ways.mark == 0 || from.IsValid()
}

// take implements client.Taker for connections that the kernel has led here, whose user is not known, or that were announced.
func (x *user) take(from netip.AddrPort) (choice.Who, netip.AddrPort, bool) {
	if c := x.captures(); c != nil {
		if server, ok := c.Take(from); ok {
			return choice.Who{}, server, true
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	server, uid, ok := x.expected.Take(from, time.Now())
	return choice.Who{User: uid}, server, ok
}

// Ask implements ask.Handler.
func (x *user) Ask(p ask.Process, server netip.AddrPort) ask.Answer {
	who := choice.Who{User: p.UID}
	ways := x.client.Choose(who, server)
	if len(ways) == 0 {
		return ask.Answer{KeepFor: directFor, Plain: x.client.IsPlain(server)}
	}
	x.mu.Lock()
	converter := x.inPlace(ways, server)
	x.mu.Unlock()
	fast := x.client.MayFastOpen(who, converter, server)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ways.mark != 0 {
		// A program's socket could not leave the tunnel if the converter fails. So a program that waits asks the relay, as
		// if that were the converter.
		self := x.at4
		if server.Addr().Unmap().Is6() {
			self = x.at6
		}
		return ask.Answer{Convert: &ask.Convert{Converter: self, Cookie: x.waits(p, self.Addr()), Relay4: x.at4, Relay6: x.at6}}
	}
	return ask.Answer{Convert: &ask.Convert{Converter: converter, Cookie: x.cookies[converter], FastOpen: fast, Relay4: x.at4, Relay6: x.at6}}
}

// waitsFor is the time in which a program must connect that waits for the relay's answer.
const waitsFor = 10 * time.Second

// waits returns the cookie with which a program names its server to the relay, from one of this host's loopback addresses.
func (x *user) waits(p ask.Process, at netip.Addr) []byte {
	return x.waiters.Seal(cookie.Claim{Mark: p.UID, Client: at, Expires: time.Now().Add(waitsFor)})
}

// waiter returns the client to whom waits has given a cookie.
func (x *user) waiter(b []byte, at netip.Addr) (choice.Who, bool) {
	uid, err := x.waiters.Open(b, at, time.Now())
	return choice.Who{User: uid}, err == nil
}

// inPlace returns the converter to which a program's own socket connects. The socket may have no other family than the
// server's, so inPlace returns an address of this family: of the first of ways if that has one, else of the next one that has.
// It returns the first of ways if none has.
func (x *user) inPlace(ways []netip.AddrPort, server netip.AddrPort) netip.AddrPort {
	fit := slices.DeleteFunc(slices.Clone(ways), func(way netip.AddrPort) bool {
		return way.Addr().Is4() != server.Addr().Unmap().Is4()
	})
	if len(fit) == 0 {
		return ways[0]
	}
	same := slices.IndexFunc(fit, func(way netip.AddrPort) bool { return x.members[way] == x.members[ways[0]] })
	return fit[max(same, 0)]
}

// Expect implements ask.Handler.
func (x *user) Expect(p ask.Process, local, server netip.AddrPort) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port()) // an IPv6 socket may call an IPv4 address
	return x.expected.Add(p, local, server, time.Now())
}

// Excludes implements ask.Handler.
func (x *user) Excludes(_ ask.Process, program string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Contains(x.programs, program)
}

// withTargets returns paths and the targets of those that are symbolic links, because the kernel names a program by
// its file.
func withTargets(paths []string) (all []string) {
	for _, path := range paths {
		all = append(all, path)
		if target, err := filepath.EvalSymlinks(path); err == nil && target != path {
			all = append(all, target)
		}
	}
	return all
}

// Reports of root count for all connections. Those of other users count for the user who made them, because anybody may
// report anything.

// Learned implements ask.Handler.
func (x *user) Learned(p ask.Process, server netip.AddrPort, mptcp bool) {
	if p.UID != 0 {
		x.note(p, func(its *choice.Account, now time.Time) { its.Learned(server, mptcp, now) })
		return
	}
	x.client.Update(func(c *choice.Choice) { c.Learned(server, mptcp, time.Now()) })
}

// note changes the account of a user other than root.
func (x *user) note(p ask.Process, change func(its *choice.Account, now time.Time)) {
	now := time.Now()
	x.client.Update(func(c *choice.Choice) { change(c.Account(choice.Who{User: p.UID}, now), now) })
}

// Suspect implements ask.Handler. The converter's own answer decides, and it is asked seldom, so any user may suspect it.
func (x *user) Suspect(_ ask.Process, converter netip.AddrPort) { x.client.Suspect(converter) }

// Unserved implements ask.Handler.
func (x *user) Unserved(p ask.Process, converter, server netip.AddrPort) {
	for _, c := range x.addressesOf(converter) {
		if p.UID != 0 {
			x.note(p, func(its *choice.Account, now time.Time) { its.Unserved(c, server, now) })
			x.client.Suspect(c)
			continue
		}
		x.client.Unserved(c, server)
	}
}

// Refused implements ask.Handler.
func (x *user) Refused(p ask.Process, converter, server netip.AddrPort) {
	if p.UID != 0 {
		x.Unserved(p, converter, server)
		return
	}
	for _, c := range x.addressesOf(converter) {
		x.client.Refused(c, server)
	}
}

// addressesOf returns all addresses of the converter with this address.
func (x *user) addressesOf(converter netip.AddrPort) []netip.AddrPort {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := []netip.AddrPort{converter}
	for c, member := range x.members {
		if c != converter && member == x.members[converter] {
			all = append(all, c)
		}
	}
	return all
}

// Carried implements ask.Handler.
func (x *user) Carried(p ask.Process, local, converter, server netip.AddrPort, handshake, answer time.Duration) {
	if local.IsValid() && !converter.Addr().IsLoopback() && owns(p, local, converter) { // else it is the relay, which knows the server
		x.led.note(local, converter, server)
	}
	if p.UID != 0 {
		x.note(p, func(its *choice.Account, now time.Time) { its.Carried(converter, server, answer, now) })
		return
	}
	x.client.Update(func(c *choice.Choice) { c.Carried(converter, server, handshake, answer, time.Now()) })
}

// owns reports whether a process may name the server of a connection to a converter. Users may do so for their own.
func owns(p ask.Process, local, converter netip.AddrPort) bool {
	uid, err := mptcp.Owner(local, converter)
	return err == nil && (p.UID == 0 || p.UID == uid)
}

// FastOpened implements ask.Handler.
func (x *user) FastOpened(p ask.Process, converter netip.AddrPort, how ask.FastOpen) {
	if p.UID != 0 {
		x.note(p, func(its *choice.Account, now time.Time) { its.FastOpened(converter, fastOpens[how], now) })
		return
	}
	x.client.FastOpened(converter, fastOpens[how])
}

var fastOpens = map[ask.FastOpen]choice.FastOpen{
	ask.FastOpenWorked: choice.FastOpenWorked, ask.FastOpenSilent: choice.FastOpenSilent, ask.FastOpenFailed: choice.FastOpenFailed,
}
