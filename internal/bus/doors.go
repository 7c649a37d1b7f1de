package bus

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// maxConnections bounds one member's connections, because NATS has no such limit. A coordinator has three. A host that
// has lost its network leaves old ones behind for minutes.
const maxConnections = 6

// doors holds members' connections, and limits those of each member.
type doors struct {
	mu   sync.Mutex
	open map[string][]net.Conn
}

func newDoors() *doors { return &doors{open: map[string][]net.Conn{}} }

// enter adds a member's new connection. If the member has too many, it closes the oldest, which the member may have
// lost.
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

// leave removes a connection that has ended.
func (d *doors) leave(member string, conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	conns := slices.DeleteFunc(d.open[member], func(c net.Conn) bool { return c == conn })
	if d.open[member] = conns; len(conns) == 0 {
		delete(d.open, member)
	}
}

// has reports whether a member has a connection.
func (d *doors) has(member string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open[member]) > 0
}

// addresses returns the addresses from which a member is connected.
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
