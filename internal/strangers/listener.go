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
	seen   *Seen

	mu     sync.Mutex
	others crowd // strangers from any address
	likely crowd // strangers from addresses where a member was seen
	// admitted has the connections of each member, the oldest first, if PerMember bounds them.
	admitted map[string][]*Conn
}

// NewListener bounds the connections of l. Several listeners may share seen.
func NewListener(l net.Listener, limits Limits, seen *Seen) *Listener {
	return &Listener{Listener: l, limits: limits, seen: seen, others: newCrowd(limits), likely: newCrowd(limits), admitted: map[string][]*Conn{}}
}

// Accept returns the next connection. It may close an older one.
func (l *Listener) Accept() (net.Conn, error) {
	plain, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &Conn{Conn: plain, listener: l, source: sourceOf(plain), crowd: &l.others}
	if l.seen.has(c.source) {
		c.crowd = &l.likely
	}
	l.mu.Lock()
	victim := c.crowd.enter(c)
	c.patience = time.AfterFunc(l.limits.Patience, func() {
		if l.leave(c) {
			plain.Close()
		}
	})
	l.mu.Unlock()
	if victim != nil {
		victim.patience.Stop()
		victim.Conn.Close()
	}
	return c, nil
}

// leave frees a connection's place among strangers, and reports whether it had one.
func (l *Listener) leave(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.crowd.leave(c)
}

// admit counts a connection as the member's, and returns the member's oldest one if it has too many now: the member may
// have forgotten that one.
func (l *Listener) admit(c *Conn, member string) (victim *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.crowd.leave(c)
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
	c.crowd.leave(c)
	if c.member == "" {
		return
	}
	list := slices.DeleteFunc(l.admitted[c.member], func(x *Conn) bool { return x == c })
	if l.admitted[c.member] = list; len(list) == 0 {
		delete(l.admitted, c.member)
	}
}

// Strangers returns the number of strangers.
func (l *Listener) Strangers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.others.total + l.likely.total
}

// Conn is a connection returned by Accept.
type Conn struct {
	net.Conn
	listener *Listener
	source   netip.Prefix
	crowd    *crowd
	patience *time.Timer

	// Guarded by the listener's mutex:
	member string // set if PerMember bounds members' connections
	closed bool
}

// Admit marks the connection as a member's that has authenticated. It frees the stranger's place, and later connections
// from the address get a place more easily. If the member has too many connections now, its oldest is closed.
func (c *Conn) Admit(member string) {
	c.patience.Stop()
	victim := c.listener.admit(c, member)
	c.listener.seen.add(member, c.source)
	if victim != nil {
		victim.Conn.Close()
	}
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.patience.Stop()
	c.listener.forget(c)
	return c.Conn.Close()
}

// sourceOf returns the address, or the network, that a host has for itself.
func sourceOf(conn net.Conn) netip.Prefix {
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	a, bits := at.Addr().Unmap().WithZone(""), 32
	if a.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(a, bits).Masked()
}
