package strangers

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Limits bound connections.
type Limits struct {
	Total     int           // strangers, and as many again from addresses where members were seen
	PerSource int           // of them from one address
	Patience  time.Duration // after which a stranger's connection is closed
	PerMember int           // admitted connections of one member; 0: not bounded here
}

// Listener accepts connections of type *Conn. Each is a stranger's until it is admitted or closed.
type Listener struct {
	net.Listener
	limits Limits
	places *Places

	mu sync.Mutex
	// admitted has the connections of each member, the oldest first, if PerMember bounds them.
	admitted map[string][]*Conn
}

// NewListener bounds the connections of l. Several listeners may share seen.
func NewListener(l net.Listener, limits Limits, seen *Seen) *Listener {
	return &Listener{Listener: l, limits: limits, places: NewPlaces(limits, seen), admitted: map[string][]*Conn{}}
}

// Accept returns the next connection. It may close an older one.
func (l *Listener) Accept() (net.Conn, error) {
	plain, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &Conn{Conn: plain, listener: l}
	c.place = l.places.Enter(addrOf(plain), c.evict)
	l.mu.Lock()
	defer l.mu.Unlock()
	c.patience = time.AfterFunc(l.limits.Patience, func() {
		if c.place.Leave() {
			plain.Close()
		}
	})
	return c, nil
}

// admit counts a connection as the member's, and returns the member's oldest one if it has too many now: the member may
// have forgotten that one.
func (l *Listener) admit(c *Conn, member string) (victim *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limits.PerMember == 0 || c.member != "" || c.closed {
		return nil
	}
	c.member = member
	l.admitted[member] = append(l.admitted[member], c)
	if all := l.admitted[member]; len(all) > l.limits.PerMember {
		victim, l.admitted[member] = all[0], all[1:]
	}
	return victim
}

// forget frees the place of a closed connection.
func (l *Listener) forget(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.closed = true
	if c.member == "" {
		return
	}
	list := slices.DeleteFunc(l.admitted[c.member], func(x *Conn) bool { return x == c })
	if l.admitted[c.member] = list; len(list) == 0 {
		delete(l.admitted, c.member)
	}
}

// Strangers returns the number of strangers.
func (l *Listener) Strangers() int { return l.places.Strangers() }

// Conn is a connection returned by Accept.
type Conn struct {
	net.Conn
	listener *Listener
	place    *Place

	// Guarded by the listener's mutex until Accept has returned the connection:
	patience *time.Timer
	// Guarded by the listener's mutex:
	member string // set if PerMember bounds members' connections
	closed bool
}

// Admit marks the connection as a member's that has authenticated. It frees the stranger's place, and later connections
// from the address get a place more easily. If the member has too many connections now, its oldest is closed.
func (c *Conn) Admit(member string) {
	c.patience.Stop()
	c.place.Admit(member)
	victim := c.listener.admit(c, member)
	if victim != nil {
		victim.Conn.Close()
	}
}

// evict closes the connection of a stranger who has lost its place.
func (c *Conn) evict() {
	c.listener.mu.Lock()
	if c.patience != nil {
		c.patience.Stop()
	}
	c.listener.mu.Unlock()
	c.Conn.Close()
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.patience.Stop()
	c.place.Leave()
	c.listener.forget(c)
	return c.Conn.Close()
}

// addrOf returns a connection's remote address; zero: it has none.
func addrOf(conn net.Conn) netip.Addr {
	at, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	return at.Addr()
}
