package tunnel

import (
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
	// askTimeout is how long a waypoint may take to answer.
	askTimeout = 5 * time.Second
	// askAgain is when a request is repeated that was not answered, retryLater when
	// one is that was refused or could not be made use of, without a time of its own.
	askAgain   = 3 * time.Second
	retryLater = 30 * time.Second
	// lookEvery is how late the death of a tunnel is noticed, at most.
	lookEvery = time.Second
)

// Session is what a Keeper needs of a session with a waypoint.
type Session interface {
	Tunnel(ctx context.Context, req wire.TunnelRequest) (wire.TunnelGrant, error)
	State() session.State
}

// Lead is one address of a waypoint and the session there.
type Lead struct {
	Via     detour.Via
	Session Session
}

// Standing is how a tunnel stands: what there is to use, or why there is nothing.
type Standing struct {
	Via     detour.Via
	Kind    path.Kind
	Tunnels []detour.Tunnel // one for each address family
	// Why there are none, for people; empty too while there is no session, which has
	// a reason of its own.
	Why string
}

func (s Standing) equal(o Standing) bool {
	return s.Via == o.Via && s.Kind == o.Kind && s.Why == o.Why && slices.Equal(s.Tunnels, o.Tunnels)
}

// end is the client's end of one kind of tunnel. One goroutine calls it.
type end interface {
	request() (wire.TunnelRequest, error)
	// set checks what was granted, and makes the tunnel so, or changes it to that.
	set(ctx context.Context, to place, g wire.TunnelGrant) error
	// check gives up those of the tunnel's addresses that this host, with its addresses
	// and routes as they are now, uses otherwise. conflict says why; nil: all stay.
	// left reports whether any stay. err: that could not be found out or done.
	check() (conflict error, left bool, err error)
	// tunnels are there to use now; else why tells what is amiss. It is called every
	// second while a lasting tunnel is granted, and follows what has changed.
	tunnels(ctx context.Context) (open []detour.Tunnel, why string)
	// drop takes down what set made.
	drop() error
	// lasting: the tunnel goes on without a session until its lease is over.
	lasting() bool
}

// place is where a tunnel leads to.
type place struct {
	at  netip.AddrPort // where we reach the session
	rtt time.Duration  // to there; 0: not known
	// fresh: the grant is the first one of its session. The waypoint may have been
	// started anew, and know nothing of the tunnel as it was.
	fresh bool
}

// Keeper keeps one kind of tunnel to one waypoint.
type Keeper struct {
	kind  path.Kind
	leads []Lead
	end   end
	tell  func(Standing)
	log   *slog.Logger
	poke  chan struct{}

	held      granted
	unchecked bool      // this host's network may have changed since the tunnel was checked
	checked   time.Time // when it was
	asked     occasion
	got       occasion  // of the last grant that was made use of
	next      time.Time // when to ask at the latest
	tried     time.Time // when it was asked last
	dead      bool      // the tunnel does not work, though it is granted
	failure   string    // of the last try
	told      Standing
	again     bool // tell even what was told: others may have changed their minds
	shut      bool // the waypoint gives nothing for now
}

// granted is the grant that is in use.
type granted struct {
	via     detour.Via
	expires time.Time // zero: there is none
}

// occasion is what a grant depends on: another session, or an address of ours
// that changed, needs another one.
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

// Poke says that a session has changed, or this host's network.
func (k *Keeper) Poke() {
	select {
	case k.poke <- struct{}{}:
	default: // not seen to yet
	}
}

// Run keeps the tunnel until ctx ends, and takes it down then.
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

// step does what is to be done now, and says how long nothing else is.
func (k *Keeper) step(ctx context.Context, now time.Time) time.Duration {
	k.check(now)
	lead, state := k.lead()
	shut := lead != nil && state.Closed != nil
	if k.shut && !shut { // what was refused may be had again
		k.asked = occasion{}
	}
	if k.shut = shut; shut && (k.held.expires.IsZero() || !k.end.lasting()) {
		lead = nil // there is nothing to be had, and nobody needs an admission that is of no use
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

// worthAnother reports whether to ask before the time: the tunnel has not worked
// for a while, though no request was refused, so the waypoint may have ended it.
func (k *Keeper) worthAnother(now time.Time) bool {
	return k.dead && k.failure == "" && now.Sub(k.tried) >= retryLater
}

// check has a tunnel's addresses given up that this host uses otherwise by now, and
// others asked for. What goes by the other address family stays. Networks change in
// bursts: it looks once a second.
func (k *Keeper) check(now time.Time) {
	if k.held.expires.IsZero() || !k.unchecked || now.Sub(k.checked) < lookEvery {
		return
	}
	k.checked = now
	conflict, left, err := k.end.check()
	if err != nil {
		k.log.Warn("whether a tunnel's address is in use on this host is not known", "err", err)
		return
	}
	k.unchecked = false
	if conflict == nil {
		return
	}
	k.log.Warn("a tunnel's address is given up", "err", conflict)
	if !left {
		k.drop()
	}
	k.asked = occasion{}
}

func (k *Keeper) drop() {
	if err := k.end.drop(); err != nil {
		k.log.Warn("tunnel is not taken down", "err", err)
	}
	k.held = granted{}
}

// parted: who granted the tunnel and we no longer accept each other, so that it
// leads nowhere although it may seem to be up for a while.
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

// partings are what no waiting mends.
var partings = []session.ProblemCode{session.Revoked, session.RefusedUs, session.OtherCA, session.WrongName, session.Expired, session.OwnIdentity}

// lead is the session to ask over: the one that granted, if it still can.
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

// ask gets a grant and sets the tunnel up, or notes why not.
func (k *Keeper) ask(ctx context.Context, l *Lead, s session.State) {
	k.asked, k.tried = k.occasion(l, s), time.Now()
	lease, err := k.get(ctx, l, s)
	if err != nil {
		k.failure = OneLine(err)
		k.next = time.Now().Add(pause(err))
		k.log.Info("no tunnel", "err", err)
		return
	}
	now := time.Now()
	k.failure = ""
	k.got = k.asked
	k.held = granted{l.Via, now.Add(lease)}
	k.next = now.Add(lease * 2 / 3)
}

func (k *Keeper) get(ctx context.Context, l *Lead, s session.State) (time.Duration, error) {
	req, err := k.end.request()
	if err != nil {
		return 0, err
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	g, err := l.Session.Tunnel(asking, req)
	if err != nil {
		return 0, fmt.Errorf("ask for a tunnel: %w", err)
	}
	to := place{
		at: netip.AddrPortFrom(l.Via.Addr, s.Addr.Port()), rtt: s.RTT,
		fresh: l.Via != k.got.via || s.Sessions != k.got.sessions,
	}
	return detour.Lease(g.Lease), k.end.set(ctx, to, g)
}

// pause is how long not to ask again.
func pause(err error) time.Duration {
	var refused *wire.Refusal
	switch {
	case errors.As(err, &refused) && refused.RetryAfter > 0 && !refused.Code.Closed():
		return detour.Wait(refused.RetryAfter)
	case errors.As(err, &refused): // the session tells when a waypoint gives again, and may have done so already
		return retryLater
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, session.ErrDown):
		return askAgain
	}
	return retryLater
}

// report tells how the tunnel stands, if that is news.
func (k *Keeper) report(ctx context.Context, lead *Lead) {
	s := Standing{Via: k.held.via, Kind: k.kind, Why: k.failure}
	k.dead = false
	if !k.held.expires.IsZero() {
		var why string
		if s.Tunnels, why = k.end.tunnels(ctx); s.Why == "" {
			s.Why = why
		}
		k.dead = len(s.Tunnels) == 0
		if k.shut { // it stays for the connections in it
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

// OneLine is an error for a table: several that were joined stand in lines of their own.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// wireKind is a kind in the language of sessions.
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
