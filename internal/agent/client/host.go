package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/bpf/connect"
	"github.com/detour-collective/dcol/internal/kernel/bpf/keepalive"
	"github.com/detour-collective/dcol/internal/kernel/bpf/mptcpify"
	"github.com/detour-collective/dcol/internal/kernel/bpf/unsent"
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
	routes      router
	listeners   *netstate.Listeners
	ports       portPicker
	uplinks     uplinks
	ways        ways
	lans        []string // interfaces of networks from whose addresses the relay connects
	metered     []string // interfaces
	events      <-chan mptcp.Event
	ends        <-chan mptcp.End // nil: what subflows carry is counted as sampled
	addresses   <-chan []netstate.Address
	problems    []string      // for the status
	inactivity  time.Duration // for which the kernel keeps connections without subflows
	log         *slog.Logger
	sending     sendingHost
	undo        []func() error
}

// router knows this host's addresses and from which of them packets leave.
type router interface {
	SourceFor(dst netip.Addr) (netstate.Address, error)
	Own() ([]netstate.Address, error)
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
	h = &host{log: log, metered: settings.Client.Budget.Interfaces}
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

// takeOver has new sockets given to this agent. Whoever manages paths must be
// listening before the first socket relies on it: the kernel refuses joins where
// nobody does.
func (h *host) takeOver(kernel *mptcp.Namespace, settings *config.Config) error {
	key, value, err := kernel.UserspacePMSysctl()
	if err != nil {
		return err
	}
	record, err := netstate.OpenRecord(SysctlRecord(settings.StateDir))
	if err != nil {
		return err
	}
	h.undo = append(h.undo, func() error { return Restore(settings.StateDir, h.log) })
	if _, err = record.Set(key, value); err != nil {
		return err
	}
	if err := shortenBlackholes(kernel, record); err != nil {
		h.log.Warn("after an outage, new connections may be plain TCP for an hour", "err", err)
	}
	if timeout := settings.Client.InactivityTimeout.Std(); timeout > 0 {
		key, value, err := kernel.InactivitySysctl(timeout)
		if err == nil {
			_, err = record.Set(key, value)
		}
		if err != nil {
			h.log.Warn("the inactivity timeout of connections stays as it is", "err", err)
		}
	}
	if h.inactivity, err = kernel.Inactivity(); err != nil {
		return err
	}
	return h.makeSocketsMPTCP(settings.Client.Mptcpify)
}

// shortenBlackholes makes it a minute, instead of Linux's hour, that new connections are plain TCP after an outage. A
// value that somebody has set stays.
func shortenBlackholes(kernel *mptcp.Namespace, record *netstate.Record) error {
	key, value, ok, err := kernel.BlackholeSysctl()
	if err != nil || !ok {
		return err
	}
	_, err = record.Set(key, value)
	return err
}

// openEnds makes it possible to count what subflows carry to the last byte. It returns the function that delivers their
// ends.
func (h *host) openEnds() func(context.Context) error {
	source, err := mptcp.OpenEnds()
	if err != nil {
		h.log.Warn("what subflows carry in their last second is not counted", "err", err)
		return func(context.Context) error { return nil }
	}
	h.undo = append(h.undo, source.Close)
	ends := make(chan mptcp.End, eventRoom)
	h.ends = ends
	return func(ctx context.Context) error {
		return source.Listen(ctx, func(e mptcp.End) {
			select {
			case ends <- e:
			case <-ctx.Done():
			}
		}, func() { h.log.Debug("what some subflows carried in their last second is not counted") })
	}
}

// makeSocketsMPTCP has the kernel make programs' sockets MPTCP, as the operator wants. Where this kernel cannot,
// the problem is for the status to show: programs started with `dcol run` are served all the same.
func (h *host) makeSocketsMPTCP(choice string) error {
	if choice == config.MptcpifyNone {
		return nil
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &ns); err != nil {
		return fmt.Errorf("identify the network namespace: %w", err)
	}
	scope := mptcpify.Scope{NetworkNamespace: uint32(ns.Ino)}
	if choice != config.MptcpifyHost {
		scope.Cgroup = choice
	}
	hook, err := mptcpify.Attach(scope)
	if err != nil {
		problem := fmt.Sprintf("sockets do not become MPTCP ([client] mptcpify = %q): %v", choice, err)
		h.problems = append(h.problems, problem)
		h.log.Warn("sockets do not become MPTCP", "problem", problem)
		return nil
	}
	h.undo = append(h.undo, hook.Close)
	return nil
}

// openProber makes it possible to ask whether a detour is alive. Where it cannot be had, a
// detour through which nothing comes is left later, and only from bulk transfers and streams.
func (h *host) openProber(cgroup string) prober {
	p, err := keepalive.Open(cgroup)
	if err != nil {
		h.log.Warn("silent detours are detected late", "err", err)
		return nil
	}
	h.undo = append(h.undo, p.Close)
	return p
}

// boundUnsent keeps uploads from waiting for what the kernel has put in line on a detour that has become
// slow. Where it cannot be had, all works without it.
func (h *host) boundUnsent(cgroup string) {
	limit, err := unsent.Open(cgroup)
	if err != nil {
		h.log.Warn("a detour that loses packets may hold up uploads", "err", err)
		return
	}
	h.undo = append(h.undo, limit.Close)
}

// identify returns how the kernel's programs know this process, so that they leave its own connections alone; 0: they
// need not, or that cannot be found out.
func (h *host) identify(capture string) uint32 {
	if capture == config.CaptureNone {
		return 0
	}
	id, err := connect.ProcessID()
	if err != nil {
		problem := fmt.Sprintf("programs' connections are not converted ([client.converter] capture = %q): %v", capture, err)
		h.problems = append(h.problems, problem)
		h.log.Warn("programs' connections are not converted", "problem", problem)
	}
	return id
}

// close gives back what was taken, the last thing first.
func (h *host) close() error {
	var errs []error
	for i := len(h.undo) - 1; i >= 0; i-- {
		errs = append(errs, h.undo[i]())
	}
	return errors.Join(errs...)
}

// SysctlRecord is the file that remembers, across a crash, the sysctls from before the client role.
func SysctlRecord(stateDir string) string { return filepath.Join(stateDir, "client-sysctls.json") }

// Restore puts back the path manager of new sockets, and for how long the kernel uses plain TCP after an outage.
func Restore(stateDir string, log *slog.Logger) error {
	record, err := netstate.OpenRecord(SysctlRecord(stateDir))
	if err != nil {
		return err
	}
	log.Debug("sysctls are restored", "record", SysctlRecord(stateDir))
	return record.Restore()
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

// localAddrs lists all addresses, also those that are not for new connections: an
// IPv6 address is deprecated long before it is gone.
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
	if local.Behind, err = h.routes.Behind(h.lans); err != nil {
		h.log.Warn("the networks behind this host cannot be listed", "err", err)
	}
	return local, true
}

// removeAddress sends REMOVE_ADDR to the peer. The kernel forgets an address when
// any subflow from it is destroyed, and then sends nothing. So the address is
// announced again first (docs/kernel-behaviour.md).
func (h *host) removeAddress(a path.RemoveAddr) error {
	err := h.kernel.RemoveAddress(uint32(a.Token), a.LocalID)
	if !errors.Is(err, mptcp.ErrNoAddress) {
		return err
	}
	if !a.Local.IsValid() {
		return nil
	}
	if err := h.kernel.Announce(uint32(a.Token), a.Local, a.LocalID); err != nil {
		return err
	}
	return h.kernel.RemoveAddress(uint32(a.Token), a.LocalID)
}

// join asks the kernel for a subflow from a port of our choice, and returns where it comes from: only with ports
// of their own may two subflows from one address have different address ids. Before and after are called with
// each port that is tried, after when that failed.
func (h *host) join(a path.CreateSubflow, before func(from netip.AddrPort) error, after func(from netip.AddrPort)) (netip.AddrPort, error) {
	local := a.Local
	if !local.IsValid() {
		source, err := h.routes.SourceFor(a.Remote.Addr())
		if err != nil {
			return netip.AddrPort{}, err
		}
		local = source.Addr
	}
	ifIndex := h.uplinks.bound(a)
	ports, only := h.ways.candidates(a)
	tries := len(ports)
	if !only {
		tries += portTries
	}
	for i := range tries {
		var port uint16
		chosen := i < len(ports)
		if chosen {
			port = ports[i]
		} else {
			port = h.ports.pick()
		}
		from := netip.AddrPortFrom(local, port)
		if chosen && h.inUse(from, a.Remote) {
			continue
		}
		if err := before(from); err != nil {
			return netip.AddrPort{}, err
		}
		err := h.kernel.CreateSubflow(mptcp.NewSubflow{
			Token: uint32(a.Token), Local: from, LocalID: a.LocalID, Remote: a.Remote, Backup: a.Backup, IfIndex: ifIndex,
		})
		if errors.Is(err, mptcp.ErrUnsupported) && ifIndex != 0 { // then routing must choose by the source address
			ifIndex = 0
			continue
		}
		if err == nil {
			return from, nil
		}
		after(from)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return netip.AddrPort{}, err
		}
		// The kernel then forgets the oldest entry of this address instead of the one with this port and id, which would
		// refuse the id with another port (docs/kernel-behaviour.md).
		if err := h.kernel.RemoveAddress(uint32(a.Token), a.LocalID); err != nil && !errors.Is(err, mptcp.ErrNoAddress) {
			return netip.AddrPort{}, err
		}
	}
	return netip.AddrPort{}, syscall.EADDRINUSE
}

// inUse reports whether another connection has a subflow between two ends.
func (h *host) inUse(from, to netip.AddrPort) bool {
	_, err := h.kernel.Subflow(from, to)
	return err == nil
}

// portTries bounds the ports in use that are passed over: with half of all ports
// taken, one subflow in a million is refused.
const portTries = 20

// portPicker draws local ports as the kernel itself does: from its range, without those that are
// reserved for programs that name them.
type portPicker struct {
	netstate.PortRange
	reserved netstate.Ports
}

func newPortPicker() (p portPicker, err error) {
	if p.PortRange, err = netstate.LocalPorts(); err != nil {
		return p, err
	}
	p.reserved, err = netstate.ReservedPorts()
	return p, err
}

// reservedTries bounds how many reserved ports are skipped. After that many, a reserved one is used.
const reservedTries = 1000

func (p portPicker) pick() (port uint16) {
	for range reservedTries {
		port = p.First + uint16(rand.N(int(p.Last)-int(p.First)+1))
		if !p.reserved.Has(port) {
			break
		}
	}
	return port
}

// pathManagerProblem describes to the user why this agent gets no new connections. The error, of
// mptcp.Namespace.CheckUserspacePM, must not be nil.
func pathManagerProblem(err error) string {
	if errors.Is(err, mptcp.ErrSwitchedOff) {
		return "MPTCP was switched off while the agent runs, so new connections are plain TCP and get no detours: sysctl -w net.mptcp.enabled=1"
	}
	if d, ok := errors.AsType[*mptcp.DisplacedError](err); ok {
		return fmt.Sprintf("another path manager has taken over while the agent runs (%v), so new connections get no detours: "+
			"find the program that set it (mptcpd, NetworkManager, a file in sysctl.d), then: sysctl -w %s=%s", d, d.Sysctl, d.Want)
	}
	return fmt.Sprintf("cannot check whether the agent manages new connections: %v", err)
}
