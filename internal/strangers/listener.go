package strangers

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Limits are what strangers may hold.
type Limits struct {
	Total     int           // connections, and as many again from addresses where members were seen
	PerSource int           // of them from one address
	Patience  time.Duration // how long one may be a stranger; then its connection is closed
	PerMember int           // connections that one member may have, once admitted; 0: no bound here
}

// Listener accepts connections, each of which is a stranger's until it is admitted or closed. The connections
// that Accept returns are of type *Conn.
type Listener struct {
	net.Listener
	limits Limits
	seen   *Seen

	mu     sync.Mutex
	others crowd // strangers from any address
	likely crowd // strangers from where a member was seen
	// admitted has members' connections, where they are bounded, the oldest first.
	admitted map[string][]*Conn
}

// NewListener bounds the strangers among who connects to l. Several listeners may share what was seen.
func NewListener(l net.Listener, limits Limits, seen *Seen) *Listener {
	return &Listener{Listener: l, limits: limits, seen: seen, others: newCrowd(limits), likely: newCrowd(limits), admitted: map[string][]*Conn{}}
}

// Accept returns the next connection. It may close an older one for that.
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

// leave says whether a connection was a stranger's until now.
func (l *Listener) leave(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.crowd.leave(c)
}

// admit counts a connection as the member's, and returns the member's oldest if it has too many now. The newest is the
// one that the member still knows of.
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

// forget gives up the place of a connection that is closed, whosever it is.
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

// Strangers is how many there are now.
func (l *Listener) Strangers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.others.total + l.likely.total
}

// Conn is a connection that Accept returned.
type Conn struct {
	net.Conn
	listener *Listener
	source   netip.Prefix
	crowd    *crowd
	patience *time.Timer

	// Guarded by the listener's mutex:
	member string // whose it is, where members' connections are bounded
	closed bool
}

// Admit says that a member has shown that this is its connection: it takes no stranger's place any more, and the
// next one from the same address has a better chance. If the member has too many now, its oldest is closed.
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

// sourceOf is the network that a host has for itself.
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
