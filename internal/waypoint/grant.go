package waypoint

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// request is a MapRequest on its way to the owner and its answer's way back.
type request struct {
	wire.MapRequest
	peer   Peer
	answer chan answer // holds one, so that the owner never waits
}

type answer struct {
	grant   wire.MapGrant
	refusal *wire.Refusal
}

// client is the address that the mapping is for.
func (r *request) client() netip.Addr { return r.peer.client() }

// Refused members are told to come back after these.
const (
	retryQuota = 30 * time.Second
	retryFault = 5 * time.Second
)

// outcome is what was decided on a request: a mapping or a refusal.
type outcome struct {
	member  *member
	mapping *mapping
	added   bool
	refusal *wire.Refusal
}

// decide grants or refuses a request and notes in the batch what the kernel must be told.
func (w *Waypoint) decide(b *batch, r *request) outcome {
	m := w.members.get(r.peer.Name, r.peer.Serial)
	if m == nil {
		return outcome{member: w.members.of(0), refusal: tooManyMembers(r.ID)}
	}
	refusal := w.refused(r)
	if refusal == nil {
		refusal = w.whileClosed(r.ID, b.now)
	}
	if refusal != nil {
		return outcome{member: m, refusal: refusal}
	}
	t := target{member: m.ID, client: r.client(), server: r.Server}
	expires := b.now.Add(w.config.MappingLifetime)
	if found := w.index.find(t); found != nil {
		b.renew(w.index, found, expires)
		return outcome{member: m, mapping: found}
	}
	if have := w.index.byMember[m.ID]; have >= w.config.MappingsPerMember {
		refusal := refuse(r.ID, wire.QuotaMappings, fmt.Sprintf("you hold %d mappings of %d", have, w.config.MappingsPerMember))
		refusal.RetryAfter = retryQuota
		return outcome{member: m, refusal: refusal}
	}
	proposed, taken := r.Proposed, w.taken
	if w.guards(t.server) {
		proposed = 0
		taken = func(port uint16) bool { return port == t.server.Port() || w.taken(port) }
	}
	port, ok := w.index.choosePort(t, proposed, taken)
	if !ok {
		refusal := refuse(r.ID, wire.Busy, fmt.Sprintf("all ports are taken for your address %v", t.client))
		refusal.RetryAfter = retryQuota
		return outcome{member: m, refusal: refusal}
	}
	added := &mapping{key: rules.Key{Client: t.client, Port: port}, server: t.server, member: m.ID, expires: expires}
	b.add(w.index, added)
	return outcome{member: m, mapping: added, added: true}
}

// guards reports whether the server's own port, as the client sees it here, is for SYNs that are authenticated:
// in-band ones. A mapping there would let every SYN to it through, also a forged one, or one that lost its option on
// the way, so it gets another port. It does so whether or not the client has in-band detours now: it may ask for
// them next.
func (w *Waypoint) guards(server netip.AddrPort) bool {
	return w.config.InBand == InBandAuthenticated && server.Addr().Is4()
}

// refused refuses what no state can make right.
func (w *Waypoint) refused(r *request) *wire.Refusal {
	if !r.Server.IsValid() || !r.client().IsValid() {
		return refuse(r.ID, wire.Malformed, "the request names no server")
	}
	if err := w.policy.Check(r.Server); err != nil {
		return forbidden(r.ID, err)
	}
	if r.Server.Addr().Is4() != r.client().Is4() {
		return refuse(r.ID, wire.FamilyMismatch, "")
	}
	return nil
}

// forbidden is the refusal of a server that the policy denies. One that is denied only until the waypoint knows
// where others see it may be asked for again.
func forbidden(id uint64, err error) *wire.Refusal {
	if egress.ForNow(err) {
		refusal := refuse(id, wire.NotReady, err.Error())
		refusal.RetryAfter = retryFault
		return refusal
	}
	return refuse(id, wire.DestinationForbidden, err.Error())
}

func refuse(id uint64, code wire.Code, message string) *wire.Refusal {
	return &wire.Refusal{ID: id, Code: code, Message: message}
}

// tooManyMembers refuses whom no mark is left for.
func tooManyMembers(id uint64) *wire.Refusal {
	return refuse(id, wire.Busy, "the waypoint serves as many members as it can tell apart")
}

// refuseTunnel counts and records a refusal of what leads to any server.
func (w *Waypoint) refuseTunnel(m *member, peer Peer, now time.Time, refusal *wire.Refusal) *wire.Refusal {
	m.refused[refusal.Code]++
	e, due := w.refusals.Entry(now, peer.Name, peer.Serial, refusal.Code.String(), refusal.Message, peer.client(), netip.AddrPort{})
	if due {
		e.By = w.sessions.by(peer.ID)
		w.record.Write(e)
	}
	return refusal
}

// listenersAge is how long the list of listening ports is believed. A program that begins to listen
// on a port where a member has a mapping loses only that member's connections.
const listenersAge = time.Second

type listeners struct {
	ports map[uint16]bool
	read  time.Time
}

func (l *listeners) on(port uint16) bool { return l.ports[port] }

// taken reports whether a port is a program's of this host: one listens there, or the port is reserved for
// one that may.
func (w *Waypoint) taken(port uint16) bool {
	return w.listening.on(port) || w.kernel.reserved.Has(port)
}

// refreshListeners reads the list anew if it is old. If that fails, the old one is used.
func (w *Waypoint) refreshListeners(now time.Time) {
	if w.listening.ports != nil && now.Sub(w.listening.read) < listenersAge {
		return
	}
	list, err := w.kernel.listeners()
	if err != nil {
		w.log.Warn("cannot see which ports programs listen on", "err", err)
		return
	}
	ports := make(map[uint16]bool, len(list))
	for _, a := range list {
		if !a.Addr().IsLoopback() { // others cannot reach those
			ports[a.Port()] = true
		}
	}
	w.listening = listeners{ports: ports, read: now}
}
