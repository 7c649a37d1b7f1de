// Package detour keeps the client's book of detours. book.go has the mappings: the waypoints that can be asked,
// the requests to them, and their grants and refusals, with the times until which they are valid. tunnels.go
// has the open detours that reach any server. Like the path manager, the package only decides: the caller
// reports an event, and gets events for the path manager and requests to send. So one goroutine can own the
// book, and tests run it in virtual time.
package detour

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

const (
	// maxAsking bounds the outstanding requests to one waypoint address, so that a slow waypoint
	// neither costs memory nor is overloaded.
	maxAsking = 512
	// refusedFor is the time for which a refusal is valid if it names no time.
	refusedFor = 30 * time.Second
	// unansweredFor is the time after which an unanswered request is repeated.
	unansweredFor = 3 * time.Second
)

// Via is one address of one waypoint, to which a session leads.
type Via struct {
	Waypoint string
	Addr     netip.Addr
}

// Ask is a request to send: a mapping at Via for Server.
type Ask struct {
	Via    Via
	Server netip.AddrPort
}

// Grant is a waypoint's positive answer: connections to Port at the waypoint are forwarded to the
// server for Lease. Asking again extends it.
type Grant struct {
	Port  uint16
	Lease time.Duration
}

// Refusal is a waypoint's negative answer, or the lack of one.
type Refusal struct {
	// Why is a reason to show to users.
	Why string
	// For is the time for which this is not requested again. If zero, the usual time applies.
	For time.Duration
	// All is set if nothing else should be asked of this waypoint for that time either.
	All bool
	// Forbidden is set if the waypoint forwards no member to this server, by any kind of detour.
	Forbidden bool
	// Unanswered is set if the request or its answer was lost.
	Unanswered bool
}

// Book holds the state of all detours. It is not safe for concurrent use.
type Book struct {
	use  []path.Kind
	vias map[Via]*via
	due  map[Ask]time.Time // mappings to renew or to withdraw, and when
	next time.Time         // no later than the earliest of due; zero: none
}

type via struct {
	up       bool
	asking   int
	pause    time.Time // nothing is asked until then
	unmapped bool      // offers no mappings
	maps     map[netip.AddrPort]*mapping
	tunnels  map[tunnelKey]path.DetourID // on offer
	why      string                      // of the last refusal
}

// mapping is the state of one server at one via.
type mapping struct {
	asking  bool
	refused time.Time // until when; zero: not refused
	why     string    // it was refused last
	// forbidden is set if it was refused because the waypoint forwards nothing to the server.
	forbidden bool
	port      uint16 // zero: no grant
	renew     time.Time
	expires   time.Time
	wanted    bool // a connection asked since the grant
}

// New returns an empty book for detours of the given kinds. An empty list means all kinds.
func New(use []path.Kind) *Book {
	if len(use) == 0 {
		use = policy.Kinds()
	}
	return &Book{use: use, vias: make(map[Via]*via), due: make(map[Ask]time.Time)}
}

func (b *Book) via(v Via) *via {
	w := b.vias[v]
	if w == nil {
		w = &via{maps: make(map[netip.AddrPort]*mapping), tunnels: make(map[tunnelKey]path.DetourID)}
		b.vias[v] = w
	}
	return w
}

// Up records that the waypoint can be asked at this address.
func (b *Book) Up(v Via) []path.Event {
	w := b.via(v)
	w.up, w.pause, w.why = true, time.Time{}, ""
	return []path.Event{path.WaypointReady{Waypoint: v.Waypoint, Addr: v.Addr}}
}

// Offers records which kinds the waypoint offers. Mappings are requested unless the kinds exclude them.
func (b *Book) Offers(v Via, kinds []path.Kind) {
	b.via(v).unmapped = !slices.Contains(kinds, path.Mapped)
}

// Down records that the waypoint no longer answers at this address. Its mappings and subflows
// through them may live on, but nothing new uses them or its admission of in-band SYNs. Tunnels
// stay until Closed, because only their owner sees whether they work.
func (b *Book) Down(v Via) []path.Event {
	w := b.vias[v]
	if w == nil || !w.up {
		return nil
	}
	w.up = false
	out := []path.Event{path.WaypointLost{Waypoint: v.Waypoint, Addr: v.Addr}}
	for server, m := range w.maps {
		if m.port != 0 {
			out = append(out, path.DetourWithdrawn{ID: id(v, server, m.port)})
		}
		delete(b.due, Ask{v, server})
	}
	w.maps, w.asking = make(map[netip.AddrPort]*mapping), 0
	return append(out, w.close(path.InBand)...)
}

// Leave removes a waypoint address that must not be used any more. Its grants, refusals and outstanding
// requests no longer count.
func (b *Book) Leave(v Via) []path.Event {
	if w := b.vias[v]; w != nil {
		for server := range w.maps {
			delete(b.due, Ask{v, server})
		}
		delete(b.vias, v)
	}
	return []path.Event{path.WaypointLeft{Waypoint: v.Waypoint, Addr: v.Addr}}
}

// Request records that a connection to server would use a mapping. It returns the requests to send: one to every
// waypoint that was not asked yet, so that a spare is available when one fails.
func (b *Book) Request(server netip.AddrPort, now time.Time) []Ask {
	if !slices.Contains(b.use, path.Mapped) {
		return nil
	}
	var asks []Ask
	for v, w := range b.vias {
		if m := w.maps[server]; m != nil && m.port != 0 {
			m.wanted = true
		}
		if b.ask(v, w, server, now) {
			asks = append(asks, Ask{v, server})
		}
	}
	slices.SortFunc(asks, func(x, y Ask) int {
		return cmp.Or(cmp.Compare(x.Via.Waypoint, y.Via.Waypoint), x.Via.Addr.Compare(y.Via.Addr))
	})
	return asks
}

// ask decides whether to ask, and records that it was asked.
func (b *Book) ask(v Via, w *via, server netip.AddrPort, now time.Time) bool {
	if !w.up || w.unmapped || w.asking >= maxAsking || now.Before(w.pause) || v.Addr.Is4() != server.Addr().Is4() {
		return false
	}
	m := w.maps[server]
	switch {
	case m == nil:
		m = &mapping{}
		w.maps[server] = m
	case m.asking, now.Before(m.refused), m.port != 0 && now.Before(m.renew):
		return false
	}
	m.asking, m.refused = true, time.Time{}
	w.asking++
	return true
}

// Granted records a positive answer to an Ask.
func (b *Book) Granted(a Ask, g Grant, now time.Time) []path.Event {
	w, m := b.answered(a)
	if m == nil {
		return nil
	}
	var out []path.Event
	if m.port != 0 && m.port != g.Port {
		out = append(out, path.DetourWithdrawn{ID: id(a.Via, a.Server, m.port)})
	}
	m.port, m.wanted = g.Port, false
	lease := Lease(g.Lease)
	m.renew, m.expires = now.Add(lease*2/3), now.Add(lease)
	w.why = ""
	b.lookAt(a, m.renew)
	return append(out, path.DetourOffered{Detour: path.Detour{
		ID: id(a.Via, a.Server, g.Port), Kind: path.Mapped, Waypoint: a.Via.Waypoint,
		Remote: netip.AddrPortFrom(a.Via.Addr, g.Port), Server: a.Server,
	}})
}

// Refused records a negative answer or the lack of one. An earlier grant stays valid until its
// lease is over.
func (b *Book) Refused(a Ask, r Refusal, now time.Time) []path.Event {
	w, m := b.answered(a)
	if m == nil {
		return nil
	}
	wait := refusedFor
	switch {
	case r.For > 0:
		wait = Wait(r.For)
	case r.Unanswered:
		wait = unansweredFor
	}
	w.why, m.why, m.forbidden, m.refused = r.Why, r.Why, r.Forbidden, now.Add(wait)
	if r.All {
		w.pause = now.Add(wait)
	}
	at := m.refused
	if m.port != 0 && m.expires.Before(at) {
		at = m.expires
	}
	b.lookAt(a, at)
	if !r.Forbidden {
		return nil
	}
	return []path.Event{forbidden(a, r.Why, wait)}
}

// forbidden returns the event that the waypoint forwards nothing to a server. It is not asked again until wait is over.
func forbidden(a Ask, why string, wait time.Duration) path.Event {
	return path.ServerRefused{Waypoint: a.Via.Waypoint, Addr: a.Via.Addr, Server: a.Server, Err: errors.New(why), For: wait}
}

func (b *Book) answered(a Ask) (*via, *mapping) {
	w := b.vias[a.Via]
	if w == nil {
		return nil, nil
	}
	m := w.maps[a.Server]
	if m == nil || !m.asking { // the session ended meanwhile
		return nil, nil
	}
	m.asking = false
	w.asking--
	return w, m
}

// Due renews grants in use, withdraws others when their lease is over, and forgets old refusals.
func (b *Book) Due(now time.Time) (asks []Ask, events []path.Event) {
	var due []Ask
	b.next = time.Time{}
	for a, at := range b.due {
		if !now.Before(at) {
			due = append(due, a)
		} else if b.next.IsZero() || at.Before(b.next) {
			b.next = at
		}
	}
	for _, a := range due {
		w := b.vias[a.Via]
		m := w.maps[a.Server]
		delete(b.due, a)
		switch {
		case m.port == 0:
			if !m.asking {
				delete(w.maps, a.Server)
			}
		case !now.Before(m.expires):
			events = append(events, path.DetourWithdrawn{ID: id(a.Via, a.Server, m.port)})
			m.port = 0
			if !m.asking {
				delete(w.maps, a.Server)
			}
		default:
			b.lookAt(a, m.expires)
			if m.wanted && b.ask(a.Via, w, a.Server, now) {
				asks = append(asks, a)
			}
		}
	}
	return asks, events
}

// Next returns when to call Due. It returns false if Due need not be called before another change.
func (b *Book) Next() (time.Time, bool) { return b.next, !b.next.IsZero() }

func (b *Book) lookAt(a Ask, at time.Time) {
	b.due[a] = at
	if b.next.IsZero() || at.Before(b.next) {
		b.next = at
	}
}

// State describes what one waypoint address provides.
type State struct {
	Up       bool
	Mappings int
	// Tunnels lists the kinds on offer that reach any server, in the order of policy.Kinds.
	Tunnels []path.Kind
	// Refused is the reason of the last refusal. It is empty if the last request was not refused.
	Refused string
}

// State returns the state of one via, or the zero State if it was never up.
func (b *Book) State(v Via) State {
	w := b.vias[v]
	if w == nil {
		return State{}
	}
	s := State{Up: w.up, Refused: w.why}
	for _, m := range w.maps {
		if m.port != 0 {
			s.Mappings++
		}
	}
	for key := range w.tunnels {
		if !slices.Contains(s.Tunnels, key.kind) {
			s.Tunnels = append(s.Tunnels, key.kind)
		}
	}
	slices.Sort(s.Tunnels)
	return s
}

// Refusal returns why a mapping to the server was refused lately at v. It is empty if it was not.
func (b *Book) Refusal(v Via, server netip.AddrPort, now time.Time) string {
	w := b.vias[v]
	if w == nil {
		return ""
	}
	if m := w.maps[server]; m != nil && now.Before(m.refused) {
		return m.why
	}
	return ""
}

func id(v Via, server netip.AddrPort, port uint16) path.DetourID {
	return path.DetourID("mapped " + netip.AddrPortFrom(v.Addr, port).String() + " to " + server.String())
}
