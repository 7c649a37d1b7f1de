package bench

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/lab/testbed"
)

// detourCounter counts the detours that carry data through each waypoint, from one look at the server's sockets to the next.
// For the server, a detour comes from its waypoint's address.
type detourCounter struct {
	handle    *netlink.Handle
	waypoints map[netip.Addr]int
	carried   map[socketCookie]uint64 // bytes, at the last look
}

// socketCookie identifies a socket until the host restarts.
type socketCookie = [2]uint32

// leastCarried is the number of bytes in a second from which on a detour carries data. A backup or a detour that is only
// tried has fewer.
const leastCarried = 10_000

// newDetourCounter returns a counter that reads the server's sockets by sock_diag.
func (p sharingPlan) newDetourCounter(s *network) (*detourCounter, error) {
	c := &detourCounter{waypoints: map[netip.Addr]int{}}
	_, waypoints := p.names()
	for j, name := range waypoints {
		addr, _ := s.Host(name).AddrOn(toServer(name))
		c.waypoints[addr] = j
	}
	var err error
	c.handle, err = testbed.On(s.Host(serverHost), func() (*netlink.Handle, error) { return netlink.NewHandle(unix.NETLINK_INET_DIAG) })
	if err != nil {
		return nil, fmt.Errorf("open sock_diag on %s: %w", serverHost, err)
	}
	return c, nil
}

func (c *detourCounter) close() { c.handle.Close() }

// look returns how many detours have carried data through each waypoint since the last look, a second ago.
func (c *detourCounter) look() (users []float64, err error) {
	sockets, err := c.handle.SocketDiagTCPInfo(syscall.AF_INET)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list TCP sockets: %w", err)
	}
	return c.count(sockets), nil
}

// count does what look does, for the given sockets.
func (c *detourCounter) count(sockets []*netlink.InetDiagTCPInfoResp) []float64 {
	users, carried := make([]float64, len(c.waypoints)), map[socketCookie]uint64{}
	for _, s := range sockets {
		peer, _ := netip.AddrFromSlice(s.InetDiagMsg.ID.Destination)
		j, ours := c.waypoints[peer.Unmap()]
		if !ours || s.TCPInfo == nil {
			continue
		}
		cookie := s.InetDiagMsg.ID.Cookie
		carried[cookie] = s.TCPInfo.Bytes_acked
		if carried[cookie] >= c.carried[cookie]+leastCarried {
			users[j]++
		}
	}
	c.carried = carried
	return users
}
