package testbed

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// netemBackend puts a switch between the two ends of each link, on an extra host, and netem on the switch's ports:
//
//	A -veth- [port a, bridge, port b] -veth- B
//
// netem is not on A's own interface. There, the kernel would tell A's TCP of a full queue, but a TCP does not learn of
// the queues of routers on its path.
type netemBackend struct {
	seed  uint64
	mid   *Host
	links []netemLink
}

type netemLink struct {
	vethLink
	portA, portB string // on mid
	mtu          int
	ab, ba       LinkParams
	isDown       bool
	zero         [2]uint64 // drops of ports b and a at the last reset
}

func newNetemBackend(seed uint64) (*netemBackend, error) {
	mid, err := startHost(hostPlan{HostSpec: HostSpec{Name: "links"}}, nil, "", &coupled{})
	if err != nil {
		return nil, err
	}
	err = mid.Do(func() error {
		// Without addresses and IPv6, the ports send no packets of their own.
		return setSysctl("net.ipv6.conf.default.disable_ipv6", "1")
	})
	if err != nil {
		return nil, errors.Join(err, mid.close())
	}
	if err := mid.Do(probeNetem); err != nil {
		err = fmt.Errorf("this kernel has no netem: load it with `modprobe sch_netem`, or use backend %q: %w", BackendEmulator, err)
		return nil, errors.Join(err, mid.close())
	}
	return &netemBackend{seed: seed, mid: mid}, nil
}

func (n *netemBackend) connect(link int, l linkPlan, a, b *Host) error {
	nl := netemLink{
		vethLink: vethLink{a: a, b: b, ifA: a.plan.iface(link), ifB: b.plan.iface(link)},
		portA:    fmt.Sprintf("a%d", link+1), portB: fmt.Sprintf("b%d", link+1),
		mtu: l.mtu(), ab: l.AtoB, ba: l.BtoA,
	}
	for _, end := range []struct {
		host        *Host
		iface, port string
	}{{a, nl.ifA.name, nl.portA}, {b, nl.ifB.name, nl.portB}} {
		err := end.host.Do(func() error {
			if err := addVeth(end.iface, end.port, n.mid); err != nil {
				return err
			}
			return noSuperPackets(end.iface)
		})
		if err != nil {
			return err
		}
	}
	err := n.mid.Do(func() error { return bridgePorts(fmt.Sprintf("br%d", link+1), nl.mtu, nl.portA, nl.portB) })
	if err != nil {
		return err
	}
	n.links = append(n.links, nl)
	return n.apply(link)
}

// noSuperPackets makes the sender segment its data before netem, which would otherwise take 64 KiB for one packet.
func noSuperPackets(iface string) error {
	link, err := findLink(iface)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetGSOMaxSegs(link, 1); err != nil {
		return fmt.Errorf("turn off segmentation offload of %s: %w", iface, err)
	}
	return nil
}

func bridgePorts(name string, mtu int, ports ...string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	off := false
	bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &off}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("create bridge %s: %w", name, err)
	}
	for _, port := range ports {
		link, err := findLink(port)
		if err != nil {
			return err
		}
		err = errors.Join(netlink.LinkSetMTU(link, mtu), noSuperPackets(port),
			netlink.LinkSetMaster(link, bridge), netlink.LinkSetUp(link))
		if err != nil {
			return fmt.Errorf("add port %s to bridge %s: %w", port, name, err)
		}
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("bring bridge %s up: %w", name, err)
	}
	return nil
}

func (n *netemBackend) start(context.Context) error {
	for _, l := range n.links {
		if err := resolve(l.a, l.ifA, l.b, l.ifB); err != nil {
			return err
		}
	}
	return nil
}

func (n *netemBackend) set(link int, ab, ba LinkParams) error {
	if ab.Impaired() || ba.Impaired() {
		return errNetemImpaired
	}
	n.links[link].ab, n.links[link].ba = ab, ba
	return n.apply(link)
}

func (n *netemBackend) down(link int, down bool) error {
	n.links[link].isDown = down
	return n.apply(link)
}

// apply configures a link's two ports. For a link that is down it replaces netem, which drops the packets in flight.
func (n *netemBackend) apply(link int) error {
	l := n.links[link]
	seed := n.seed + uint64(2*link)
	return n.mid.Do(func() error {
		if l.isDown {
			return errors.Join(dropAll(l.portA, true), dropAll(l.portB, true))
		}
		if err := setQdisc(l.portB, "netem", netemOptions(l.ab, l.mtu, seed)); err != nil {
			return err
		}
		return setQdisc(l.portA, "netem", netemOptions(l.ba, l.mtu, seed+1))
	})
}

func (n *netemBackend) stats(link int) (ab, ba LinkStats, err error) {
	l := n.links[link]
	atA, atB, err := l.read()
	if err != nil {
		return LinkStats{}, LinkStats{}, err
	}
	drops, err := n.drops(l)
	if err != nil {
		return LinkStats{}, LinkStats{}, err
	}
	ab, ba = received(atB, l.zeroB), received(atA, l.zeroA)
	ab.QueueDrops, ba.QueueDrops = drops[0]-l.zero[0], drops[1]-l.zero[1]
	return ab, ba, nil
}

// drops returns the drops of port b, which sends A's packets on, and of port a. Like the kernel, it counts them from
// the time when the port was last set up or down.
func (n *netemBackend) drops(l netemLink) (drops [2]uint64, err error) {
	err = n.mid.Do(func() error {
		for i, port := range []string{l.portB, l.portA} {
			link, err := findLink(port)
			if err != nil {
				return err
			}
			qdiscs, err := netlink.QdiscList(link)
			if err != nil {
				return fmt.Errorf("read counters of %s: %w", port, err)
			}
			for _, q := range qdiscs {
				if s := q.Attrs().Statistics; q.Attrs().Parent == netlink.HANDLE_ROOT && s != nil && s.Queue != nil {
					drops[i] = uint64(s.Queue.Drops)
				}
			}
		}
		return nil
	})
	return drops, err
}

func (n *netemBackend) reset() (err error) {
	for i := range n.links {
		l := &n.links[i]
		if l.zeroA, l.zeroB, err = l.read(); err != nil {
			return err
		}
		if l.zero, err = n.drops(*l); err != nil {
			return err
		}
	}
	return nil
}

func (n *netemBackend) scheduling() string { return "kernel" }
func (n *netemBackend) close() error       { return n.mid.close() }
