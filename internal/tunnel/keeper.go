package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

const (
	// askTimeout bounds the wait for a waypoint's answer.
	askTimeout = 5 * time.Second
	// askAgain is the delay before an unanswered request is repeated. retryLater is the delay after a refused or
	// unusable request, unless the refusal names a time.
	askAgain   = 3 * time.Second
	retryLater = 30 * time.Second
	// lookEvery bounds the time until a failed tunnel is noticed.
	lookEvery = time.Second
)

// Session is the part of a session with a waypoint that a Keeper needs.
type Session interface {
	Tunnel(ctx context.Context, req wire.TunnelRequest) (wire.TunnelGrant, error)
	State() session.State
}

// Lead is one address of a waypoint and the session there.
type Lead struct {
	Via     detour.Via
	Session Session
}

// Standing is the state of a tunnel: the usable detours, or why there are none.
type Standing struct {
	Via     detour.Via
	Kind    path.Kind
	Tunnels []detour.Tunnel // one for each address family
	// Why is the reason, for users, why there are none. It is empty without a session, because the session has its own
	// reason.
	Why string
	// Remote is the UDP address to which a VPN sends its packets. It is invalid without a grant.
	Remote netip.AddrPort
}

func (s Standing) equal(o Standing) bool {
	return s.Via == o.Via && s.Kind == o.Kind && s.Why == o.Why && s.Remote == o.Remote && slices.Equal(s.Tunnels, o.Tunnels)
}

// end is the client's end of one kind of tunnel. It is called by one goroutine.
type end interface {
	request() (wire.TunnelRequest, error)
	// set checks a grant, and creates or changes the tunnel accordingly.
	set(ctx context.Context, to place, g wire.TunnelGrant) error
	// check gives up those of the tunnel's addresses that this host now uses elsewhere. conflict is
	// the reason, or nil if all addresses stay. left reports whether any stay. err reports that the
	// check failed.
	check() (conflict error, left bool, err error)
	// tunnels returns the detours that can be used now, or why there are none. It is called every
	// second while a lasting tunnel is granted, and adapts the tunnel to changes.
	tunnels(ctx context.Context) (open []detour.Tunnel, why string)
	// drop removes what set made.
	drop() error
	// lasting reports whether the tunnel continues without a session until its lease is over.
	lasting() bool
}

// place is the waypoint's end of a tunnel.
type place struct {
	at  netip.AddrPort // where we reach the session
	rtt time.Duration  // round-trip time to there; 0: unknown
	// fresh is set if the grant is the first one in its session. The waypoint may have restarted and lost the tunnel's
	// state.
	fresh bool
}

// Keeper maintains one kind of tunnel to one waypoint.
type Keeper struct {
	kind  path.Kind
	leads []Lead
	end   end
	tell  func(Standing)
	log   *slog.Logger
	poke  chan struct{}

	held      granted
	unchecked bool      // this host's network may have changed since the last check
	checked   time.Time // time of the last check
	asked     occasion
	got       occasion  // occasion of the last grant that was used
	next      time.Time // when the request is due at the latest
	tried     time.Time // when the last request was sent
	dead      bool      // granted, but it does not work
	failure   string    // of the last try
	told      Standing
	again     bool // report the Standing even if unchanged, because the Standings of other tunnels may have changed
	shut      bool // the waypoint is closed for now
}

// granted is the grant in use.
type granted struct {
	via     detour.Via
	expires time.Time // zero: no grant
	remote  netip.AddrPort
}

// occasion is the situation in which a grant was made. Another session, or a change of our address,
// requires a new grant.
type occasion struct {
	via      detour.Via
	sessions uint64
	observed netip.Addr
}

func newKeeper(kind path.Kind, leads []Lead, e end, tell func(Standing), log *slog.Logger) *Keeper {
	return &Keeper{
		kind: kind, leads: leads, end: e, tell: tell, poke: make(chan struct{}, 1),
		log: log.With("kind", kind.String(), "waypoint", leads[0].Via.Waypoint),
	}
}

// Poke reports a change of a session or of this host's network.
func (k *Keeper) Poke() {
	select {
	case k.poke <- struct{}{}:
	default: // an earlier Poke is still pending
	}
}

// Run maintains the tunnel until ctx ends, and then removes it.
func (k *Keeper) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			k.drop()
			return
		case <-k.poke:
			k.again, k.unchecked = true, true
		case <-timer.C:
		}
		timer.Reset(k.step(ctx, time.Now()))
	}
}

// step asks, checks and reports, as far as each is due, and returns the time until the next step.
func (k *Keeper) step(ctx context.Context, now time.Time) time.Duration {
	k.check(now)
	lead, state := k.lead()
	if k.withdrawn() {
		k.drop()
	}
	shut := lead != nil && state.Closed != nil
	if k.shut && !shut { // earlier refusals no longer count
		k.asked = occasion{}
	}
	if k.shut = shut; shut && (k.held.expires.IsZero() || !k.end.lasting()) {
		lead = nil // nothing can be granted now, and a closed waypoint needs no admission
	}
	if lead != nil && (k.occasion(lead, state) != k.asked || !now.Before(k.next) || k.worthAnother(now)) {
		k.ask(ctx, lead, state)
		now = time.Now()
	}
	lost := lead == nil && (!k.end.lasting() || k.parted())
	if !k.held.expires.IsZero() && (lost || !now.Before(k.held.expires)) {
		k.drop()
	}
	if lead == nil {
		k.asked, k.failure = occasion{}, ""
	}
	k.report(ctx, lead)

	wait := time.Hour
	if lead != nil {
		wait = k.next.Sub(now)
	}
	if !k.held.expires.IsZero() {
		wait = min(wait, k.held.expires.Sub(now))
		if k.end.lasting() {
			wait = min(wait, lookEvery)
		}
	}
	return max(wait, time.Millisecond)
}

// worthAnother reports whether to ask early: the tunnel has failed for a while although no request was refused, so the
// waypoint may have ended it.
func (k *Keeper) worthAnother(now time.Time) bool {
	return k.dead && k.failure == "" && now.Sub(k.tried) >= retryLater
}

// check gives up tunnel addresses that this host has come to use elsewhere, and asks for others.
// The other address family is not affected. Because networks change in bursts, it runs at most once
// a second.
func (k *Keeper) check(now time.Time) {
	if k.held.expires.IsZero() || !k.unchecked || now.Sub(k.checked) < lookEvery {
		return
	}
	k.checked = now
	conflict, left, err := k.end.check()
	if err != nil {
		k.log.Warn("cannot check whether a tunnel's address is in use on this host", "err", err)
		return
	}
	k.unchecked = false
	if conflict == nil {
		return
	}
	k.log.Warn("a tunnel stops using an address", "err", conflict)
	if !left {
		k.drop()
	}
	k.asked = occasion{}
}

func (k *Keeper) drop() {
	if err := k.end.drop(); err != nil {
		k.log.Warn("cannot remove a tunnel", "err", err)
	}
	k.held = granted{}
}

// parted reports whether we and the waypoint that granted the tunnel no longer accept each other.
// The tunnel then leads nowhere, although it may seem to be up for a while.
func (k *Keeper) parted() bool {
	for i := range k.leads {
		if k.leads[i].Via != k.held.via {
			continue
		}
		switch s := k.leads[i].Session.State(); {
		case s.Up || s.Problem == nil:
		case slices.Contains(partings, s.Problem.Code):
			return true
		}
	}
	return false
}

// withdrawn reports whether the waypoint that granted the tunnel no longer offers this kind to this host. It has then ended
// the grant, and connections in the tunnel lead nowhere.
func (k *Keeper) withdrawn() bool {
	for i := range k.leads {
		if !k.held.expires.IsZero() && k.leads[i].Via == k.held.via {
			s := k.leads[i].Session.State()
			return s.Usable() && !slices.Contains(s.Offers, wireKind(k.kind))
		}
	}
	return false
}

// partings are problems that do not go away by waiting.
var partings = []session.ProblemCode{session.Revoked, session.RefusedUs, session.OtherCA, session.WrongName, session.Expired, session.OwnIdentity}

// lead returns the session to ask over: the one that granted the tunnel, if still possible.
func (k *Keeper) lead() (*Lead, session.State) {
	var found *Lead
	var foundState session.State
	for i := range k.leads {
		l := &k.leads[i]
		s := l.Session.State()
		if !s.Usable() || !slices.Contains(s.Offers, wireKind(k.kind)) {
			continue
		}
		if l.Via == k.held.via {
			return l, s
		}
		if found == nil {
			found, foundState = l, s
		}
	}
	return found, foundState
}

func (k *Keeper) occasion(l *Lead, s session.State) occasion {
	return occasion{l.Via, s.Sessions, s.Observed.Addr()}
}

// ask requests a grant and sets up the tunnel, or records why not.
func (k *Keeper) ask(ctx context.Context, l *Lead, s session.State) {
	k.asked, k.tried = k.occasion(l, s), time.Now()
	lease, remote, err := k.get(ctx, l, s)
	if err != nil {
		k.failure = OneLine(err)
		k.next = time.Now().Add(pause(err))
		k.log.Info("no tunnel", "err", err)
		return
	}
	now := time.Now()
	k.failure = ""
	k.got = k.asked
	k.held = granted{l.Via, now.Add(lease), remote}
	k.next = now.Add(lease * 2 / 3)
}

// get requests a grant and sets up the tunnel. remote is the UDP address to which a VPN sends its packets.
func (k *Keeper) get(ctx context.Context, l *Lead, s session.State) (lease time.Duration, remote netip.AddrPort, err error) {
	req, err := k.end.request()
	if err != nil {
		return 0, remote, err
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	g, err := l.Session.Tunnel(asking, req)
	if err != nil {
		return 0, remote, fmt.Errorf("ask for a tunnel: %w", err)
	}
	to := place{
		at: netip.AddrPortFrom(l.Via.Addr, s.Addr.Port()), rtt: s.RTT,
		fresh: l.Via != k.got.via || s.Sessions != k.got.sessions,
	}
	if k.kind == path.WireGuard || k.kind == path.OpenVPN {
		remote = netip.AddrPortFrom(to.at.Addr(), cmp.Or(g.Port, to.at.Port()))
	}
	return detour.Lease(g.Lease), remote, k.end.set(ctx, to, g)
}

// pause returns the time to wait before the next request after err.
func pause(err error) time.Duration {
	var refused *wire.Refusal
	switch {
	case errors.As(err, &refused) && refused.RetryAfter > 0 && !refused.Code.Closed():
		return detour.Wait(refused.RetryAfter)
	case errors.As(err, &refused): // the session reports when a waypoint gives again, and may have done so already
		return retryLater
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, session.ErrDown):
		return askAgain
	}
	return retryLater
}

// report passes on the tunnel's Standing if it has changed.
func (k *Keeper) report(ctx context.Context, lead *Lead) {
	s := Standing{Via: k.held.via, Kind: k.kind, Why: k.failure}
	k.dead = false
	if !k.held.expires.IsZero() {
		s.Remote = k.held.remote
		var why string
		if s.Tunnels, why = k.end.tunnels(ctx); s.Why == "" {
			s.Why = why
		}
		k.dead = len(s.Tunnels) == 0
		if k.shut { // connections in the tunnel continue
			s.Tunnels, s.Why = nil, ""
		}
	} else if lead != nil {
		s.Via = lead.Via
	}
	if s.Via == (detour.Via{}) {
		s.Via = k.leads[0].Via
	}
	if s.equal(k.told) && !k.again {
		return
	}
	k.again = false
	if k.told.Via != s.Via && len(k.told.Tunnels) > 0 {
		k.tell(Standing{Via: k.told.Via, Kind: k.kind})
	}
	k.told = s
	k.tell(s)
}

// OneLine returns an error's text for a table. Joined errors contain line breaks.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// wireKind converts a kind to that of the session protocol.
func wireKind(k path.Kind) wire.Kind {
	switch k {
	case path.WireGuard:
		return wire.WireGuard
	case path.OpenVPN:
		return wire.OpenVPN
	case path.InBand:
		return wire.InBand
	default:
		return wire.Mapped
	}
}
