package chaos

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/lab/chaos/twin"
)

// subflow is one of the client's subflows.
type subflow struct {
	token         uint32
	local, remote netip.AddrPort
	state         mptcp.TCPState
}

// connections lists a host's MPTCP connections, as its kernel has them.
func (w *world) connections(host string) (all []mptcp.Connection, err error) {
	err = w.host(host).Do(func() (err error) {
		n, err := mptcp.Open(slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, n.Close()) }()
		all, err = n.Connections()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the connections of %s: %w", host, err)
	}
	return all, nil
}

func (w *world) eachSubflow(yield func(subflow)) error {
	all, err := w.connections(alice)
	for _, c := range all {
		for _, s := range c.Subflows {
			yield(subflow{c.Token, s.Local, s.Remote, s.State})
		}
	}
	return err
}

// Paths is how a connection stood at a moment.
type Paths struct {
	Local    netip.AddrPort `json:"local"`
	Known    bool           `json:"known"`    // the kernel has it
	Fallback bool           `json:"fallback"` // it is plain TCP
	// Ways are the paths that its established subflows take: the waypoints'
	// names, "direct", or the address within a tunnel.
	Ways []string `json:"ways"`
}

// lacking reports whether the connection has fewer than two paths.
func (p Paths) lacking() bool { return p.Known && !p.Fallback && len(p.Ways) < 2 }

// paths tells by which paths each connection that lives goes now.
func (w *world) paths(conns []*twin.Conn) ([]Paths, error) {
	all, err := w.connections(alice)
	if err != nil {
		return nil, err
	}
	var found []Paths
	for _, conn := range conns {
		p := Paths{Local: conn.Local()}
		for _, c := range all {
			if c.Local == p.Local {
				p.Known, p.Fallback, p.Ways = true, c.Fallback, w.ways(c)
			}
		}
		found = append(found, p)
	}
	return found, nil
}

func (w *world) ways(c mptcp.Connection) []string {
	ways, seen := []string{}, map[string]bool{}
	for _, s := range c.Subflows {
		way := w.way(s)
		if s.State == mptcp.StateEstablished && !seen[way] {
			ways, seen[way] = append(ways, way), true
		}
	}
	return ways
}

func (w *world) way(s mptcp.Subflow) string {
	for _, name := range w.allWaypoints() {
		if s.Remote.Addr() == w.host(name).Addr4() {
			return name
		}
	}
	if s.Local.Addr() == w.client() {
		return "direct"
	}
	return "by way of " + s.Local.Addr().String()
}
