package session

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/time/rate"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// line is the waypoint's end of one session.
type line struct {
	id      uint64
	session wire.SessionID // identifies it in the member's statement
	conn    *quic.Conn
	member  collective.Member
	v4      bool
	since   time.Time
	use     *use
	gone    chan struct{} // closed when the handler was notified of its end
}

func (l *line) peer() Peer {
	return Peer{ID: l.id, Name: l.member.Name, Serial: l.member.Serial, Key: l.member.Key, Issuer: l.member.Issuer, Addr: addrPort(l.conn.RemoteAddr()).Addr()}
}

// use is the usage of one member over all its sessions.
type use struct {
	requests *rate.Limiter
	// messages limits the rate of all messages, including refused ones. Above it, reading pauses.
	messages *rate.Limiter
	lines    []*line // oldest first
}

// registry holds the live sessions and enforces the members' limits.
type registry struct {
	limits Limits

	mu     sync.Mutex
	lastID uint64
	uses   map[string]*use
}

func newRegistry(limits Limits) *registry {
	return &registry{limits: limits, uses: map[string]*use{}}
}

// add admits a session, and returns the one that it displaces, if any.
func (r *registry) add(conn *quic.Conn, member collective.Member, now time.Time) (added, displaced *line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.uses[member.Name]
	if u == nil {
		u = &use{
			requests: rate.NewLimiter(r.limits.RequestRate, r.limits.RequestBurst),
			messages: rate.NewLimiter(2*r.limits.RequestRate+10, 2*r.limits.RequestBurst+10),
		}
		r.uses[member.Name] = u
	}
	r.lastID++
	added = &line{
		id: r.lastID, session: newSessionID(), conn: conn, member: member, v4: addrPort(conn.RemoteAddr()).Addr().Is4(), since: now, use: u,
		gone: make(chan struct{}),
	}
	same := 0
	for _, l := range u.lines {
		if l.v4 == added.v4 {
			same++
			if displaced == nil {
				displaced = l
			}
		}
	}
	if same < r.limits.Sessions {
		displaced = nil
	} else {
		u.lines = slices.DeleteFunc(u.lines, func(l *line) bool { return l == displaced })
	}
	u.lines = append(u.lines, added)
	return added, displaced
}

func (r *registry) remove(gone *line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone.use.lines = slices.DeleteFunc(gone.use.lines, func(l *line) bool { return l == gone })
	close(gone.gone)
}

// other returns another session of the same member from the address from, or nil.
func (r *registry) other(than *line, from netip.AddrPort) *line {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range than.use.lines {
		if l != than && addrPort(l.conn.RemoteAddr()) == from {
			return l
		}
	}
	return nil
}

// forget drops members without a session once their rate allowance is full again, so that
// reconnecting does not renew the allowance.
func (r *registry) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, u := range r.uses {
		if len(u.lines) == 0 && u.requests.Tokens() >= float64(u.requests.Burst()) {
			delete(r.uses, name)
		}
	}
}

func (r *registry) all() []*line {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*line
	for _, u := range r.uses {
		out = append(out, u.lines...)
	}
	slices.SortFunc(out, func(a, b *line) int { return cmp.Compare(a.id, b.id) })
	return out
}
