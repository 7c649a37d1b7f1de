package client

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// host is this host's kernel as the client role uses it.
type host struct {
	kernel      mptcp.Kernel
	listen      func(context.Context) error // delivers events and ends until the context ends
	pathManager func() error                // checks that new connections are given to this agent
	displaced   bool                        // another path manager had them when that was last checked
	routes      router
	listeners   *netstate.Listeners
	ports       portPicker
	uplinks     uplinks
	cgroups     cgroups
	lans        []string // interfaces of networks from whose addresses the relay connects
	metered     []string // interfaces
	events      <-chan mptcp.Event
	ends        <-chan mptcp.End // nil: what subflows carry is counted as sampled
	addresses   <-chan []netstate.Address
	problems    []string      // for the status
	inactivity  time.Duration // for which the kernel keeps connections without subflows
	log         *slog.Logger
	undo        []func() error // in the order in which the changes were made
}

// router knows this host's addresses and from which of them packets leave.
type router interface {
	SourceFor(dst netip.Addr) (netstate.Address, error)
	Own() ([]netstate.Address, error)
	Network() ([]netip.Addr, error)
	Interfaces() ([]netstate.Interface, error)
	OnLink() ([]netip.Prefix, error)
	Behind(interfaces []string) ([]netip.Prefix, error)
	Uplinks() ([]netstate.Uplink, error)
}

// eventRoom is the number of kernel events that may wait for the loop: half a second of
// a very busy host. Ten thousand more wait in the kernel, where they take memory only then.
const eventRoom = 4096

// openHost takes over new connections.
func openHost(ctx context.Context, settings *config.Config, log *slog.Logger) (h *host, err error) {
	h = &host{
		log: log, metered: settings.Client.Budget.Interfaces, uplinks: newUplinks(settings.Policies), cgroups: newCgroups(settings.Policies),
	}
	if convert := settings.Client.Converter; convert.KeepIPv6 {
		h.lans = convert.Gateway
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	kernel, err := mptcp.Open(log)
	if err != nil {
		return h, err
	}
	h.undo = append(h.undo, kernel.Close)
	events := make(chan mptcp.Event, eventRoom)
	h.kernel, h.pathManager, h.events = kernel, kernel.CheckUserspacePM, events
	count := h.openEnds()
	h.listen = func(ctx context.Context) error {
		group, listening := errgroup.WithContext(ctx)
		group.Go(func() error { return kernel.Listen(listening, events) })
		group.Go(func() error { return count(listening) })
		return group.Wait()
	}
	if h.ports, err = newPortPicker(); err != nil {
		return h, err
	}
	routes, err := netstate.OpenAddresses()
	if err != nil {
		return h, err
	}
	h.routes, h.undo = routes, append(h.undo, func() error { routes.Close(); return nil })
	if h.listeners, err = netstate.OpenListeners(); err != nil {
		return h, err
	}
	h.undo = append(h.undo, h.listeners.Close)
	if h.addresses, err = netstate.WatchAddresses(ctx); err != nil {
		return h, err
	}
	err = h.takeOver(kernel, settings)
	return h, err
}

// close undoes the changes to the host, the last one first.
func (h *host) close() error {
	var errs []error
	for i := len(h.undo) - 1; i >= 0; i-- {
		errs = append(errs, h.undo[i]())
	}
	return errors.Join(errs...)
}

// interfaces lists those that are up.
func (h *host) interfaces() []netstate.Interface {
	list, err := h.routes.Interfaces()
	if err != nil {
		h.log.Warn("this host's interfaces cannot be listed", "err", err)
	}
	return list
}

// neighbourhood lists the networks that this host is in.
func (h *host) neighbourhood() []netip.Prefix {
	list, err := h.routes.OnLink()
	if err != nil {
		h.log.Warn("this host's networks cannot be listed", "err", err)
	}
	return list
}

// localAddrs lists all addresses, including deprecated ones: an IPv6 address is deprecated
// long before it is gone.
func (h *host) localAddrs(interfaces []netstate.Interface) (local path.LocalAddrs, ok bool) {
	own, err := h.routes.Own()
	if err != nil {
		h.log.Warn("this host's addresses cannot be listed", "err", err)
		return local, false
	}
	tunnels, metered := make(map[int]bool), make(map[int]bool)
	for _, i := range interfaces {
		tunnels[i.Index] = tunnel.Ours(i.Name)
		metered[i.Index] = slices.Contains(h.metered, i.Name)
	}
	for _, a := range own {
		local.Addrs = append(local.Addrs, a.Addr)
		if tunnels[a.IfIndex] {
			local.Tunnels = append(local.Tunnels, a.Addr)
		}
		if metered[a.IfIndex] {
			local.Metered = append(local.Metered, a.Addr)
		}
	}
	if local.Network, err = h.routes.Network(); err != nil {
		h.log.Warn("the network that this host is on cannot be recognised", "err", err)
	}
	if local.Behind, err = h.routes.Behind(h.lans); err != nil {
		h.log.Warn("the networks behind this host cannot be listed", "err", err)
	}
	return local, true
}

// addFigures adds the kernel's figures to the subflows of connections. Subflows that are joining, or have just ended, have
// none.
func (h *host) addFigures(list []api.Connection) error {
	all := make(map[path.Ends]*api.Subflow, 2*len(list))
	for i := range list {
		for j := range list[i].Subflows {
			s := &list[i].Subflows[j]
			all[path.Ends{Local: s.Local, Remote: s.Remote}] = s
		}
	}
	return h.kernel.Subflows(func(s *mptcp.Subflow) bool {
		if to := all[path.Ends{Local: s.Local, Remote: s.Remote}]; to != nil {
			setFigures(to, s)
		}
		return true
	})
}

// sourceFor returns the address from which a connection to dst starts, or zero if there is no route.
func (h *host) sourceFor(dst netip.Addr) netip.Addr {
	source, err := h.routes.SourceFor(dst)
	if err != nil {
		return netip.Addr{}
	}
	return source.Addr
}

// removeAddress sends REMOVE_ADDR to the peer. The kernel forgets an address when any subflow from it is destroyed, and
// then sends nothing. So the address is announced again first (docs/kernel-behaviour.md), except with id 0, with which
// nothing can be announced.
func (h *host) removeAddress(a path.RemoveAddr) error {
	err := h.kernel.RemoveAddress(uint32(a.Token), a.LocalID)
	if !errors.Is(err, mptcp.ErrNoAddress) {
		return err
	}
	if !a.Local.IsValid() || a.LocalID == 0 {
		return nil
	}
	if err := h.kernel.Announce(uint32(a.Token), a.Local, a.LocalID); err != nil {
		return err
	}
	return h.kernel.RemoveAddress(uint32(a.Token), a.LocalID)
}

// open reports whether both ends of the connection are open. One that is not found is taken for open.
func (h *host) open(token path.Token) bool {
	open, err := h.kernel.Open(uint32(token))
	return open || err != nil
}
