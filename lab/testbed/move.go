package testbed

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// lastMove limits how often a host can move on a link, because its IPv4 network has 256 addresses and a move takes the next but one.
const lastMove = 120

// TakeAddress removes the host's addresses on a link and its routes over that link, as when a host leaves a network.
func (n *Network) TakeAddress(host, link string) error {
	return n.onIface("take the address of", host, link, func(h *Host, iface ifacePlan) error {
		return h.Do(func() error {
			dev, err := findLink(iface.name)
			if err != nil {
				return err
			}
			addrs, err := netlink.AddrList(dev, netlink.FAMILY_ALL)
			if err != nil {
				return fmt.Errorf("list the addresses of %s: %w", iface.name, err)
			}
			var failed []error
			for _, addr := range addrs {
				failed = append(failed, netlink.AddrDel(dev, &addr))
			}
			return errors.Join(append(failed, deleteRoutes(dev))...)
		})
	})
}

// deleteRoutes removes the routes over an interface that the kernel kept when the last address was removed. In IPv6, it
// keeps all routes through a gateway.
func deleteRoutes(dev netlink.Link) error {
	routes, err := netlink.RouteList(dev, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the routes over %s: %w", dev.Attrs().Name, err)
	}
	var failed []error
	for _, route := range routes {
		if route.Gw != nil {
			failed = append(failed, netlink.RouteDel(&route))
		}
	}
	return errors.Join(failed...)
}

// Renumber gives the host other addresses on a link, in the same networks. It first removes the present addresses, if
// TakeAddress has not. Then it restores the host's routes over the link, and the other hosts reach it at the new
// addresses. /etc/hosts keeps the old ones.
func (n *Network) Renumber(host, link string) error {
	if err := n.TakeAddress(host, link); err != nil {
		return err
	}
	return n.onIface("renumber", host, link, func(h *Host, _ ifacePlan) error {
		iface, routes, err := h.move(link)
		if err != nil {
			return err
		}
		err = h.Do(func() error {
			dev, err := findLink(iface.name)
			if err != nil {
				return err
			}
			if err := addAddresses(dev, iface); err != nil {
				return err
			}
			return configureRoutes(routes)
		})
		if err != nil {
			return err
		}
		if err := n.addNeighboursOf(h, iface); err != nil {
			return err
		}
		return h.restoreCongestionControl()
	})
}

// onIface runs act for a host's interface on a link.
func (n *Network) onIface(what, host, link string, act func(h *Host, iface ifacePlan) error) error {
	err := func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.closed {
			return ErrClosed
		}
		h := n.Host(host)
		if h == nil {
			return errors.New("there is no such host")
		}
		iface, ok := h.ifaceOn(link)
		if !ok {
			return errors.New("it is not on that link")
		}
		return act(h, iface)
	}()
	if err != nil {
		return fmt.Errorf("%s host %s on link %s: %w", what, host, link, err)
	}
	return nil
}

// move chooses the host's next addresses on a link. It returns the interface with these addresses, and the
// host's plan with only the routes over it.
func (h *Host) move(link string) (ifacePlan, hostPlan, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, name := range h.links {
		if name != link {
			continue
		}
		iface := &h.plan.ifaces[i]
		if iface.moves == lastMove {
			return ifacePlan{}, hostPlan{}, fmt.Errorf("it has moved %d times, and there are no more addresses", lastMove)
		}
		iface.moves++
		// The ends have odd and even addresses, so that they never get the same.
		iface.net4, iface.net6 = afterNext(iface.net4), afterNext(iface.net6)
		plan := hostPlan{ifaces: h.plan.ifaces}
		for _, route := range h.plan.routes {
			if route.iface == i {
				plan.routes = append(plan.routes, route)
			}
		}
		return *iface, plan, nil
	}
	return ifacePlan{}, hostPlan{}, errors.New("it is not on that link")
}

func afterNext(p netip.Prefix) netip.Prefix {
	if !p.IsValid() {
		return p
	}
	return netip.PrefixFrom(p.Addr().Next().Next(), p.Bits())
}

// FirstAddr returns the address that a host had on a link before it was renumbered, given one of its addresses there.
// If addr is on no link of the network, it returns addr.
func (n *Network) FirstAddr(addr netip.Addr) netip.Addr {
	for _, l := range n.plan.links {
		for _, net := range []netip.Prefix{l.net4, l.net6} {
			if !net.Contains(addr) {
				continue
			}
			first := net.Addr().Next()
			if bytes := addr.AsSlice(); bytes[len(bytes)-1]%2 == 0 {
				first = first.Next() // the B end has even addresses
			}
			return first
		}
	}
	return addr
}

// addNeighboursOf adds the new addresses to the neighbour table of the host at the link's other end. Only backends
// without address resolution need that.
func (n *Network) addNeighboursOf(h *Host, iface ifacePlan) error {
	if n.name == BackendEmulator {
		return nil
	}
	link := n.plan.links[iface.link]
	peer := n.hosts[link.a+link.b-n.index(h)]
	return resolve(h, iface, peer, peer.plan.iface(iface.link))
}

func (n *Network) index(h *Host) int {
	for i, other := range n.hosts {
		if other == h {
			return i
		}
	}
	return -1
}
