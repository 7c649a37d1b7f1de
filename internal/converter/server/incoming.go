package server

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
	"github.com/detour-collective/dcol/internal/strangers"
)

// wayTimeout bounds the time that a member's relay may take to accept a connection and to reach the service.
const wayTimeout = 10 * time.Second

// incomingLimits bounds the connections of strangers that wait for a member.
var incomingLimits = strangers.Limits{Total: 1024, PerSource: 64}

// NewPlaces returns places that the Incoming fronts of a converter share.
func NewPlaces() *strangers.Places {
	return strangers.NewPlaces(incomingLimits, strangers.NewSeen())
}

// Way is an address at which a member takes the connections of one port.
type Way struct {
	At      netip.AddrPort `json:"at"`     // of the member's relay
	Cookie  []byte         `json:"cookie"` // sealed by the member
	Expires time.Time      `json:"expires"`
}

// Incoming is a front that takes the connections of strangers for a member that listens (RFC 8803, section 5.2). It
// tells the member's relay the stranger's address in a Connect TLV. If the member does not take the connection, the
// stranger gets a reset.
type Incoming struct {
	places *strangers.Places
	member atomic.Pointer[Listener]
}

// Listener is a member that listens.
type Listener struct {
	Mark uint32 // of the connections to the member
	Ways []Way  // to the member, in the order in which they are tried
}

// NewIncoming returns a front that takes nothing before Set.
func NewIncoming(places *strangers.Places) *Incoming {
	f := &Incoming{places: places}
	f.Set(Listener{})
	return f
}

// Set changes the member for whom connections are taken. Open connections continue.
func (f *Incoming) Set(l Listener) { f.member.Store(&l) }

// Open implements engine.Front.
func (f *Incoming) Open(a engine.Accepted) (engine.Opening, error) {
	o := &delivery{peer: a.Peer, to: *f.member.Load()}
	if o.next = o.way(time.Now()); o.next == nil {
		return nil, errors.New("no member takes connections here any more")
	}
	o.place = f.places.Enter(a.Peer.Addr(), a.HangUp)
	return o, nil
}

// delivery is the state of one connection until the member has taken it.
type delivery struct {
	peer   netip.AddrPort
	place  *strangers.Place
	to     Listener // with the ways that are not tried yet
	next   *engine.Dial
	answer rfc8803.Answer
}

// way returns the next way to the member, or nil if there is none.
func (o *delivery) way(now time.Time) *engine.Dial {
	for len(o.to.Ways) > 0 {
		w := o.to.Ways[0]
		o.to.Ways = o.to.Ways[1:]
		if !now.Before(w.Expires) {
			continue
		}
		greeting, err := rfc8803.Message{Connect: &rfc8803.Connect{Server: o.peer}, Cookie: w.Cookie}.Append(nil)
		if err != nil {
			continue // the cookie is too long for a message
		}
		o.answer = rfc8803.Answer{}
		return &engine.Dial{
			To: w.At, MPTCP: true, NoFallback: true, Mark: o.to.Mark, Timeout: wayTimeout, Greeting: greeting, Await: o.answer.Hear, MayHangUp: true,
		}
	}
	return nil
}

// Read implements engine.Opening. The member is called before the stranger has sent anything, because some services
// send first.
func (o *delivery) Read([]byte) engine.Step { return engine.Step{Dial: o.next} }

// Dialled implements engine.Opening. If the member itself refuses, no other way is tried.
func (o *delivery) Dialled(r engine.Result) engine.Step {
	if r.Errno == 0 {
		return engine.Step{}
	}
	if o.answer.Error == nil {
		if next := o.way(time.Now()); next != nil {
			return engine.Step{Dial: next}
		}
	}
	return engine.Step{Reset: true}
}

// Ended implements engine.Ender.
func (o *delivery) Ended() { o.place.Leave() }
