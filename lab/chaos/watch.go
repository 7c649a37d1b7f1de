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

	"github.com/detour-collective/dcol/lab/chaos/attack"
	"github.com/detour-collective/dcol/lab/testbed"
)

// watcher sees every packet that leaves a waypoint by one of its interfaces,
// and keeps those that had no right to.
type watcher struct {
	waypoint string
	right    func(packet) string // why a packet has no right to leave; "" if it has
	fd       int
	done     chan struct{}

	mu       sync.Mutex
	findings []finding
	syns     []time.Time // of connections that left towards the server
}

// finding is a packet that had no right to leave.
type finding struct {
	at  time.Time
	why string
}

// mostFindings bounds what is kept of one interface.
const mostFindings = 10_000

// packet is what a watcher looks at: the head of an IPv4 packet.
type packet struct {
	from, to netip.AddrPort // ports of TCP and UDP only
	protocol byte
	flags    byte // of TCP
	window   uint16
}

const synFlag, ackFlag = 0x02, 0x10

func (p packet) opens() bool {
	return p.protocol == unix.IPPROTO_TCP && p.flags&(synFlag|ackFlag) == synFlag
}

// watch begins to look at what leaves by an interface.
func watch(h *testbed.Host, iface string, right func(packet) string) (*watcher, error) {
	v := &watcher{waypoint: h.Name(), right: right, done: make(chan struct{})}
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

// run looks until the channel is closed.
func (v *watcher) run(stop <-chan struct{}) {
	defer close(v.done)
	defer unix.Close(v.fd)
	buffer := make([]byte, 128)
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
		if p, ok := parse(buffer[:n]); ok {
			v.judge(p)
		}
	}
}

func (v *watcher) judge(p packet) {
	why := v.right(p)
	v.mu.Lock()
	defer v.mu.Unlock()
	if why != "" && len(v.findings) < mostFindings {
		v.findings = append(v.findings, finding{time.Now(), fmt.Sprintf("%s: %s", v.waypoint, why)})
	}
	if p.opens() {
		v.syns = append(v.syns, time.Now())
	}
}

// parse reads an IPv4 packet; false for others. Fragments are none of ours.
func parse(b []byte) (p packet, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return p, false
	}
	header := int(b[0]&15) * 4
	p.protocol = b[9]
	var ports [2]uint16
	if len(b) >= header+4 && (p.protocol == unix.IPPROTO_TCP || p.protocol == unix.IPPROTO_UDP) {
		ports = [2]uint16{binary.BigEndian.Uint16(b[header:]), binary.BigEndian.Uint16(b[header+2:])}
	}
	if len(b) >= header+16 && p.protocol == unix.IPPROTO_TCP {
		p.flags, p.window = b[header+13], binary.BigEndian.Uint16(b[header+14:])
	}
	p.from = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:])), ports[0])
	p.to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:])), ports[1])
	return p, true
}

const (
	smtp = 25 // a port that waypoints deny by default

	// Where members reach a coordinator; waypoints do.
	enrolPort, busPort = 45672, 45673
)

// rights returns what may leave a waypoint: its own packets to hosts of this
// world, and connections to the server that its policy allows.
func (w *world) rights(waypoint string) func(packet) string {
	own := map[netip.Addr]bool{}
	for _, link := range []string{inLink(waypoint), outLink(waypoint)} {
		v4, _ := w.host(waypoint).AddrOn(link)
		own[v4] = true
	}
	here := netip.MustParsePrefix("10.0.0.0/8") // what the lab numbers hosts from
	return func(p packet) string {
		switch {
		case !own[p.from.Addr()]:
			return fmt.Sprintf("a packet from %v, which is not its address, to %v", p.from.Addr(), p.to)
		case !here.Contains(p.to.Addr()):
			return fmt.Sprintf("a packet to %v, which nobody here has", p.to)
		case p.opens() && p.to.Addr() != w.host(server).Addr4() && p.to.Port() != enrolPort && p.to.Port() != busPort:
			return fmt.Sprintf("a connection to %v, which its policy denies", p.to)
		case p.opens() && p.to.Port() == smtp:
			return fmt.Sprintf("a connection to %v, a port that its policy denies", p.to)
		case p.opens() && p.window == attack.ForgedWindow && w.guardsSYNs():
			return fmt.Sprintf("a stranger's SYN to %v", p.to)
		}
		return ""
	}
}

// guardsSYNs reports that members prove their SYNs, so that none of a
// stranger's may pass.
func (w *world) guardsSYNs() bool { return slices.Contains(w.plan.Kinds, "in-band") }
