package testbed

import (
	"errors"
	"fmt"
	"slices"

	"github.com/detour-collective/dcol/lab/emulink"
	"github.com/detour-collective/dcol/lab/middlebox"
)

// Middlebox selects what a host does to packets that it forwards. StripOptions and DropOptions treat the experimental
// TCP options (kinds 253 and 254, RFC 4727) of SYNs by nftables, on every backend. The other kinds are those of
// lab/middlebox, and need the link emulator.
type Middlebox string

// The kinds of middlebox.
const (
	NoMiddlebox  Middlebox = ""
	StripOptions Middlebox = "strip-options" // overwrites the options with padding
	DropOptions  Middlebox = "drop-options"  // drops SYNs that have them
)

func (m Middlebox) validate() error {
	if m == NoMiddlebox || slices.Contains(Middleboxes(), m) || m.kind().Validate() == nil {
		return nil
	}
	return fmt.Errorf("middlebox %q is unknown: use one of %v, or none", m, Middleboxes())
}

// Middleboxes returns all kinds.
func Middleboxes() []Middlebox {
	all := []Middlebox{StripOptions, DropOptions}
	for _, k := range middlebox.Kinds() {
		all = append(all, Middlebox(k))
	}
	return all
}

// kind returns the kind for the link emulator.
func (m Middlebox) kind() middlebox.Kind {
	if m == StripOptions || m == DropOptions {
		return middlebox.None
	}
	return middlebox.Kind(m)
}

// SetStation changes how the link emulator treats packets at a host: what it does to packets that the host forwards,
// and how it answers packets whose time to live ends there.
func (n *Network) SetStation(host string, m Middlebox, quotes middlebox.Quotes, icmp middlebox.ICMP) error {
	h := n.Host(host)
	if h == nil {
		return fmt.Errorf("there is no host %q", host)
	}
	if err := errors.Join(m.validate(), quotes.Validate(), icmp.Validate()); err != nil {
		return fmt.Errorf("host %s: %w", host, err)
	}
	if !h.plan.Forward {
		return fmt.Errorf("host %s: %w", host, errNoForward)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return ErrClosed
	}
	if err := h.setNftMiddlebox(m); err != nil {
		return err
	}
	emulator, ok := n.backend.(*emulatorBackend)
	if !ok {
		if m.kind() != middlebox.None || quotes != "" || icmp != "" {
			return fmt.Errorf("host %s: %w", host, errNeedsEmulator)
		}
		return nil
	}
	s := emulink.Station{Host: host, Middlebox: m.kind(), Quotes: quotes, ICMP: icmp, Seed: n.seed}
	for _, iface := range h.plan.ifaces {
		s.Addresses = append(s.Addresses, iface.net4.Addr(), iface.net6.Addr())
	}
	return emulator.station(s)
}

// SetMiddlebox sets or removes the middlebox of a host that forwards.
func (n *Network) SetMiddlebox(host string, m Middlebox) error {
	h := n.Host(host)
	if h == nil {
		return fmt.Errorf("there is no host %q", host)
	}
	return n.SetStation(host, m, h.plan.Quotes, h.plan.ICMP)
}

// SetMiddlebox sets or removes a middlebox made of nftables rules. The host must be one that forwards.
func (h *Host) SetMiddlebox(m Middlebox) error {
	if err := m.validate(); err != nil {
		return fmt.Errorf("host %s: %w", h.Name(), err)
	}
	if m != NoMiddlebox && !h.plan.Forward {
		return fmt.Errorf("host %s: %w", h.Name(), errNoForward)
	}
	if m.kind() != middlebox.None {
		return fmt.Errorf("host %s: middlebox %q is the network's: use its SetMiddlebox", h.Name(), m)
	}
	return h.setNftMiddlebox(m)
}

// setNftMiddlebox sets the rules of StripOptions and DropOptions, or removes them for the other kinds.
func (h *Host) setNftMiddlebox(m Middlebox) error {
	if m.kind() != middlebox.None {
		m = NoMiddlebox
	}
	return h.setRules("middlebox.nft", m)
}
