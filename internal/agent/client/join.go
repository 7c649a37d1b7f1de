package client

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"syscall"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
)

// sources are the ports from which a subflow may come.
type sources struct {
	first []uint16 // tried in this order
	only  bool     // no other port is tried
}

// join asks the kernel for a subflow and returns its local end. The agent chooses the port, because two subflows from one
// address may have different address ids only if their ports differ. join calls before with each port that it tries, and
// after if that port failed.
func (h *host) join(a path.CreateSubflow, ports sources, before func(from netip.AddrPort) error, after func(from netip.AddrPort)) (netip.AddrPort, error) {
	local := a.Local
	if !local.IsValid() {
		source, err := h.routes.SourceFor(a.Remote.Addr())
		if err != nil {
			return netip.AddrPort{}, err
		}
		local = source.Addr
	}
	ifIndex := h.uplinks.bound(a)
	tries := len(ports.first)
	if !ports.only {
		tries += portTries
	}
	for i := range tries {
		var port uint16
		chosen := i < len(ports.first)
		if chosen {
			port = ports.first[i]
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
		// After EADDRINUSE, the kernel has forgotten the oldest entry of this address, and not the entry
		// of this port and id. That entry would make the kernel refuse the id with another port
		// (docs/kernel-behaviour.md).
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

// portTries bounds how many ports in use are skipped. If half of all ports are in use, one subflow in a
// million is refused.
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
