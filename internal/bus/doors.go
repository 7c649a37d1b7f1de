package bus

import (
	"net"
	"slices"
	"sync"
	"syscall"
)

const (
	// maxConnections is how many connections one member may have: a coordinator has three, and a host that
	// lost its network leaves some behind for minutes. NATS has no such limit of its own.
	maxConnections = 6
	sweepDoors     = 1024 // handshakes between two sweeps
)

// doors knows which connections members have, so that none takes the places of all others.
type doors struct {
	mu         sync.Mutex
	open       map[string][]net.Conn
	handshakes int
}

func newDoors() *doors { return &doors{open: map[string][]net.Conn{}} }

// enter takes note of a member's new connection and closes its oldest if it has too many. The newest is
// the one that the member still knows of.
func (d *doors) enter(member string, conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handshakes++; d.handshakes%sweepDoors == 0 {
		for name, conns := range d.open {
			if d.open[name] = slices.DeleteFunc(conns, closed); len(d.open[name]) == 0 {
				delete(d.open, name)
			}
		}
	}
	conns := append(slices.DeleteFunc(d.open[member], closed), conn)
	for len(conns) > maxConnections {
		conns[0].Close()
		conns = slices.Delete(conns, 0, 1)
	}
	d.open[member] = conns
}

// has says whether a member has a connection.
func (d *doors) has(member string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.open[member], func(c net.Conn) bool { return !closed(c) })
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

// closed says whether NATS has closed a connection. It tells nobody, but a closed socket has no descriptor.
func closed(conn net.Conn) bool {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	descriptor, err := socket.SyscallConn()
	return err != nil || descriptor.Control(func(uintptr) {}) != nil
}
