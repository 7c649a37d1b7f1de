package experiment

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/rfc8803"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/testbed"
)

// hostSockets reads the counters of one host's TCP sockets.
type hostSockets struct {
	handle  *netlink.Handle
	ends    *closedSockets
	byPeer  map[netip.Addr]string
	byLocal map[netip.Addr]string // the host's addresses on tunnels; "" marks other addresses
	// converters, at the client, has the addresses of converters to which the direct path leads.
	converters map[netip.Addr]bool
	tunnels    func() ([]crew.TunnelEnd, error)
	// first returns the address that an interface had before events renumbered it.
	first   func(netip.Addr) netip.Addr
	ignored map[uint64]bool // sockets that were open before the run
	sockets map[uint64]socketCounters
	open    map[uint64]bool // sockets listed at the last look
	ended   map[uint64]bool // sockets whose last counters were reported
}

// socketCounters has the counters of a socket when it was last seen.
type socketCounters struct {
	path                 string
	bytes, retransmitted int64
}

// atLeast returns the last counters of a socket, or those seen earlier where these are higher. Linux sets the counters
// of an MPTCP connection's first subflow to zero before that socket ends.
func (seen socketCounters) atLeast(last socketCounters) socketCounters {
	last.bytes, last.retransmitted = max(last.bytes, seen.bytes), max(last.retransmitted, seen.retransmitted)
	return last
}

// openHostSockets opens sock_diag on the host.
func openHostSockets(h *testbed.Host, byPeer map[netip.Addr]string, first func(netip.Addr) netip.Addr, tunnels func() ([]crew.TunnelEnd, error)) (*hostSockets, error) {
	t := &hostSockets{
		byPeer: byPeer, byLocal: map[netip.Addr]string{}, first: first, tunnels: tunnels,
		ignored: map[uint64]bool{}, sockets: map[uint64]socketCounters{},
		ended: map[uint64]bool{},
	}
	var err error
	t.handle, err = testbed.On(h, func() (*netlink.Handle, error) { return netlink.NewHandle(unix.NETLINK_INET_DIAG) })
	if err != nil {
		return nil, fmt.Errorf("open sock_diag on %s: %w", h.Name(), err)
	}
	// Subscribe to ends first, so that none is missed.
	if t.ends, err = openClosedSockets(h); err != nil {
		t.handle.Close()
		return nil, err
	}
	err = t.each(func(cookie uint64, _ socketCounters) { t.ignored[cookie] = true })
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *hostSockets) close() {
	t.handle.Close()
	t.ends.close()
}

// each yields the sockets of the workload. A server that listens for both families has IPv6 sockets for IPv4
// connections.
func (t *hostSockets) each(yield func(cookie uint64, now socketCounters)) error {
	for _, family := range []uint8{syscall.AF_INET, syscall.AF_INET6} {
		sockets, err := t.handle.SocketDiagTCPInfo(family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("list TCP sockets: %w", err)
		}
		for _, s := range sockets {
			path, err := t.path(s.InetDiagMsg.ID)
			if err != nil {
				return err
			}
			if path == "" || s.TCPInfo == nil {
				continue
			}
			yield(cookieOf(s.InetDiagMsg.ID), socketCounters{
				path:          path,
				bytes:         int64(s.TCPInfo.Bytes_acked + s.TCPInfo.Bytes_received),
				retransmitted: int64(s.TCPInfo.Total_retrans),
			})
		}
	}
	return nil
}

// path returns the path that a socket uses, or "" if the socket is not the workload's. An unknown local
// address may belong to a tunnel that came up during the run.
func (t *hostSockets) path(id netlink.SocketID) (string, error) {
	peer, _ := netip.AddrFromSlice(id.Destination)
	peer = t.first(peer.Unmap())
	path, ours := t.byPeer[peer]
	if t.converters[peer] && id.DestinationPort == rfc8803.Port {
		path, ours = scenario.DirectPath, true
	}
	if !ours {
		return "", nil
	}
	local, _ := netip.AddrFromSlice(id.Source)
	local = local.Unmap()
	if _, seen := t.byLocal[local]; !seen {
		ends, err := t.tunnels()
		if err != nil {
			return "", err
		}
		t.byLocal[local] = ""
		for _, e := range ends {
			t.byLocal[e.Addr] = e.Waypoint
		}
	}
	return cmp.Or(t.byLocal[local], path), nil
}

func cookieOf(id netlink.SocketID) uint64 { return uint64(id.Cookie[1])<<32 | uint64(id.Cookie[0]) }

// look reads the counters of all sockets, and the last counters of those that ended.
func (t *hostSockets) look() error {
	note := func(cookie uint64, now socketCounters) {
		if !t.ignored[cookie] {
			t.sockets[cookie] = now
		}
	}
	t.open = map[uint64]bool{}
	err := t.each(func(cookie uint64, now socketCounters) {
		t.open[cookie] = true
		note(cookie, now)
	})
	if err != nil {
		return err
	}
	return t.ends.each(func(o closedSocket) error {
		path, err := t.path(o.id)
		if path != "" && err == nil {
			t.ended[cookieOf(o.id)] = true
			note(cookieOf(o.id), t.sockets[cookieOf(o.id)].atLeast(socketCounters{
				path: path, bytes: int64(o.info.Bytes_acked + o.info.Bytes_received), retransmitted: int64(o.info.Total_retrans),
			}))
		}
		return err
	})
}

// settled reports whether the last counters of each socket are known: the socket was listed at the last look, or its
// end was reported. A socket that is being closed may be in neither for a moment.
func (t *hostSockets) settled() bool {
	for cookie := range t.sockets {
		if !t.open[cookie] && !t.ended[cookie] {
			return false
		}
	}
	return true
}
