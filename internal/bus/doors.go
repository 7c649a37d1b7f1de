package bus

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// maxConnections is how many connections one member may have: a coordinator has three, and a host that lost
// its network leaves some behind for minutes. NATS has no such limit of its own.
const maxConnections = 6

// doors knows which connections members have, so that none takes the places of all others.
type doors struct {
	mu   sync.Mutex
	open map[string][]net.Conn
}

func newDoors() *doors { return &doors{open: map[string][]net.Conn{}} }

// enter takes note of a member's new connection and closes its oldest if it has too many. The newest is
// the one that the member still knows of.
func (d *doors) enter(member string, conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	conns := d.open[member]
	conns = append(conns, conn)
	if len(conns) > maxConnections {
		conns[0].Close()
		conns = slices.Delete(conns, 0, 1)
	}
	d.open[member] = conns
}

// leave forgets a connection that has ended.
func (d *doors) leave(member string, conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	conns := slices.DeleteFunc(d.open[member], func(c net.Conn) bool { return c == conn })
	if d.open[member] = conns; len(conns) == 0 {
		delete(d.open, member)
	}
}

// has says whether a member has a connection.
func (d *doors) has(member string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open[member]) > 0
}

// addresses are those from which a member is connected.
func (d *doors) addresses(member string) (list []netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range d.open[member] {
		if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
			list = append(list, at.Addr().Unmap().WithZone(""))
		}
	}
	return list
}

// cut closes all of a member's connections.
func (d *doors) cut(member string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range d.open[member] {
		conn.Close()
	}
	delete(d.open, member)
}

// cutAll closes all connections.
func (d *doors) cutAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for member, conns := range d.open {
		for _, conn := range conns {
			conn.Close()
		}
		delete(d.open, member)
	}
}
