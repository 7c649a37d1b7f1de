package chaos

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/rfc8803"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/lab/chaos/attack"
	"github.com/detour-collective/dcol/lab/testbed"
)

// watcher checks every packet that leaves a waypoint by one of its interfaces, and records forbidden ones.
type watcher struct {
	waypoint string
	right    func(*packet.Packet) string // returns why a packet must not leave, or ""
	ipv6     bool                        // the family of the packets that it checks
	fd       int
	done     chan struct{}

	mu       sync.Mutex
	findings []finding
	syns     []time.Time // of connections that left towards the server
}

// finding is a packet that must not leave.
type finding struct {
	at  time.Time
	why string
}

// mostFindings bounds the findings that are kept of one interface.
const mostFindings = 10_000

// opens reports whether a packet opens a connection.
func opens(p *packet.Packet) bool {
	return p.TCP != nil && p.TCP.Flags&(packet.SYN|packet.ACK) == packet.SYN
}

// watch opens a watcher on an interface.
func watch(h *testbed.Host, iface string, right func(*packet.Packet) string) (*watcher, error) {
	v := &watcher{waypoint: h.Name(), ipv6: h.Addr().Is6(), right: right, done: make(chan struct{})}
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	err := h.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // nothing yet
		if err != nil {
			return err
		}
		v.fd = fd
		link, err := netlink.LinkByName(iface)
		if err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index}))
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s on %s: %w", iface, h.Name(), err)
	}
	return v, nil
}

// run watches until the channel is closed.
func (v *watcher) run(stop <-chan struct{}) {
	defer close(v.done)
	defer unix.Close(v.fd)
	buffer := make([]byte, 128) // the head of a packet is enough
	var decoder packet.Decoder
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, from, err := unix.Recvfrom(v.fd, buffer, 0)
		if err != nil {
			continue // nothing came for a while
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok || link.Pkttype != unix.PACKET_OUTGOING {
			continue
		}
		// One that is malformed behind its IP header is judged by that.
		if p, _ := decoder.Decode(buffer[:n]); p != nil && (p.V6 != nil) == v.ipv6 && !staysNear(p) {
			v.judge(p)
		}
	}
}

// staysNear reports whether a packet stays on its link, like IPv6's neighbour discovery, or ends after a few hops, like
// the packets by which a waypoint finds out its provider's network.
func staysNear(p *packet.Packet) bool {
	return p.Src().IsLinkLocalUnicast() || p.Src().IsUnspecified() || p.Dst().IsMulticast() || p.Dst().IsLinkLocalUnicast() ||
		p.V6 != nil && (p.ICMP != nil && p.V6.HopLimit == 255 || p.V6.HopLimit <= 3 && p.UDP != nil && p.To().Port() == traceroutePort)
}

func (v *watcher) judge(p *packet.Packet) {
	why := v.right(p)
	v.mu.Lock()
	defer v.mu.Unlock()
	if why != "" && len(v.findings) < mostFindings {
		v.findings = append(v.findings, finding{time.Now(), fmt.Sprintf("%s: %s", v.waypoint, why)})
	}
	if opens(p) {
		v.syns = append(v.syns, time.Now())
	}
}

const (
	smtp = 25 // a port that waypoints deny by default

	// Where members reach a coordinator; waypoints do.
	enrolPort, busPort = 45672, 45673

	traceroutePort = 33434
)

// rights returns the check of packets that leave a waypoint. Allowed are its own packets to
// hosts of this world, and connections to the server that its policy allows.
func (w *world) rights(waypoint string) func(*packet.Packet) string {
	own := map[netip.Addr]bool{}
	for _, link := range []string{inLink(waypoint), outLink(waypoint)} {
		own[w.on(waypoint, link)] = true
	}
	here := netip.MustParsePrefix("10.0.0.0/8") // what the lab numbers hosts from
	if w.plan.IPv6 {
		here = netip.MustParsePrefix("fd00::/16")
	}
	return func(p *packet.Packet) string {
		switch {
		case !own[p.Src()]:
			return fmt.Sprintf("a packet from %v, which is not its address, to %v", p.Src(), p.To())
		case p.TCP != nil && inTunnel(p.Dst()):
			return fmt.Sprintf("a packet to %v, which a member has in a tunnel, outside of it", p.To())
		case !here.Contains(p.Dst()) && !inTunnel(p.Dst()):
			return fmt.Sprintf("a packet to %v, which nobody here has", p.To())
		case opens(p) && p.Dst() != w.Host(server).Addr() && p.To() != w.convertsAt() && p.To().Port() != enrolPort && p.To().Port() != busPort:
			return fmt.Sprintf("a connection to %v, which its policy denies", p.To())
		case opens(p) && p.To().Port() == smtp:
			return fmt.Sprintf("a connection to %v, a port that its policy denies", p.To())
		case opens(p) && p.TCP.Window == attack.ForgedWindow && w.guardsSYNs():
			return fmt.Sprintf("a stranger's SYN to %v", p.To())
		}
		return ""
	}
}

// inTunnel reports whether an address is in the blocks from which waypoints number tunnels. Packets of WireGuard itself may
// go to such an address: it answers to the source of a member's packets, and while the member has no other address, its
// kernel uses the one in the tunnel.
func inTunnel(a netip.Addr) bool { return tunnels4.Contains(a) || tunnels6.Contains(a) }

// tunnels4 and tunnels6 are the configuration's default.
var tunnels4, tunnels6 = netip.MustParsePrefix("10.192.0.0/11"), netip.MustParsePrefix("fd64:636f:6c00::/48")

// convertsAt returns where the converter takes connections; zero: there is none.
func (w *world) convertsAt() netip.AddrPort {
	if w.plan.Converter == "" {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(w.Host(converter).Addr(), rfc8803.Port)
}

// guardsSYNs reports whether SYNs of members are authenticated, so that none of a stranger's may pass.
func (w *world) guardsSYNs() bool { return slices.Contains(w.plan.Kinds, "in-band") }
