package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// vethBackend joins two hosts by a plain veth pair.
type vethBackend struct {
	links []vethLink // by link index
}

type vethLink struct {
	a, b         *Host
	ifA, ifB     ifacePlan
	zeroA, zeroB netlink.LinkStatistics // at the last reset
}

func (v *vethBackend) connect(link int, _ linkPlan, a, b *Host) error {
	ifA, ifB := a.plan.iface(link), b.plan.iface(link)
	if err := a.Do(func() error { return addVeth(ifA.name, ifB.name, b) }); err != nil {
		return err
	}
	v.links = append(v.links, vethLink{a: a, b: b, ifA: ifA, ifB: ifB})
	return nil
}

func (v *vethBackend) start(context.Context) error {
	for _, l := range v.links {
		if err := resolve(l.a, l.ifA, l.b, l.ifB); err != nil {
			return err
		}
	}
	return nil
}

func (v *vethBackend) set(_ int, ab, ba LinkParams) error {
	if ab != (LinkParams{}) || ba != (LinkParams{}) {
		return fmt.Errorf("backend %q shapes nothing: build the network with %q or %q",
			BackendVeth, BackendEmulator, BackendNetem)
	}
	return nil
}

// down starts or stops dropping packets at both ends' egress, by a queue that holds nothing. Taking the interfaces down
// would also remove their routes.
func (v *vethBackend) down(link int, down bool) error {
	l := v.links[link]
	err := l.a.Do(func() error { return dropAll(l.ifA.name, down) })
	return errors.Join(err, l.b.Do(func() error { return dropAll(l.ifB.name, down) }))
}

func (v *vethBackend) stats(link int) (ab, ba LinkStats, err error) {
	l := v.links[link]
	atA, atB, err := l.read()
	if err != nil {
		return LinkStats{}, LinkStats{}, err
	}
	return received(atB, l.zeroB), received(atA, l.zeroA), nil
}

func (v *vethBackend) reset() (err error) {
	for i := range v.links {
		l := &v.links[i]
		if l.zeroA, l.zeroB, err = l.read(); err != nil {
			return err
		}
	}
	return nil
}

func (v *vethBackend) scheduling() string { return "kernel" }
func (v *vethBackend) close() error       { return nil }

func (l *vethLink) read() (atA, atB netlink.LinkStatistics, err error) {
	atA, err = ifaceStats(l.a, l.ifA.name)
	if err == nil {
		atB, err = ifaceStats(l.b, l.ifB.name)
	}
	return atA, atB, err
}

// findLink returns an interface in the calling thread's network namespace.
func findLink(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	return link, nil
}

const ethernetHeader = 14

// received returns the statistics of one direction, from the counters of the receiving end.
func received(now, zero netlink.LinkStatistics) LinkStats {
	packets := now.RxPackets - zero.RxPackets
	return LinkStats{Packets: packets, Bytes: now.RxBytes - zero.RxBytes - packets*ethernetHeader}
}

func ifaceStats(h *Host, name string) (s netlink.LinkStatistics, err error) {
	link, err := On(h, func() (netlink.Link, error) { return findLink(name) })
	if err != nil {
		return s, err
	}
	return *link.Attrs().Statistics, nil
}

// addVeth runs on the host that gets the first end. The peer gets the other end.
func addVeth(name, peerName string, peer *Host) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	veth := netlink.NewVeth(attrs)
	veth.PeerName = peerName
	veth.PeerNamespace = netlink.NsFd(peer.netns.Fd())
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create veth pair %s, %s: %w", name, peerName, err)
	}
	return nil
}

// resolve adds each end's hardware address to the other's neighbour table. It must follow the configuration
// of the interfaces, because turning address resolution off clears the table.
func resolve(a *Host, ifA ifacePlan, b *Host, ifB ifacePlan) error {
	macA, err := hardwareAddr(a, ifA.name)
	if err != nil {
		return err
	}
	macB, err := hardwareAddr(b, ifB.name)
	if err != nil {
		return err
	}
	if err := a.Do(func() error { return addNeighbours(ifA, ifB, macB) }); err != nil {
		return err
	}
	return b.Do(func() error { return addNeighbours(ifB, ifA, macA) })
}

func hardwareAddr(h *Host, name string) (net.HardwareAddr, error) {
	link, err := On(h, func() (netlink.Link, error) { return findLink(name) })
	if err != nil {
		return nil, err
	}
	return link.Attrs().HardwareAddr, nil
}

// addNeighbours adds neighbour entries for the peer: for its current addresses and for those used as next
// hops.
func addNeighbours(p, peer ifacePlan, mac net.HardwareAddr) error {
	link, err := findLink(p.name)
	if err != nil {
		return err
	}
	for _, peer := range []netip.Addr{p.peer4, p.peer6, peer.net4.Addr(), peer.net6.Addr()} {
		if !peer.IsValid() {
			continue
		}
		err := netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: peer.AsSlice(), HardwareAddr: mac,
		})
		if err != nil {
			return fmt.Errorf("add neighbour %v on %s: %w", peer, p.name, err)
		}
	}
	return nil
}
