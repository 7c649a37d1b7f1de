package testbed

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/emulink"
	"github.com/detour-collective/dcol/lab/middlebox"
)

// HostSpec describes a host.
type HostSpec struct {
	Name    string // also its hostname: letters, digits and dashes
	Forward bool   // routes other hosts' packets
	// Subflows limits the additional subflows of an MPTCP connection. nil is the kernel's default, 2.
	Subflows *int
	// NoMPTCP makes the host's kernel refuse MPTCP.
	NoMPTCP bool
	// Sysctls are set once the host has its links. Their names have dots and begin with "net.", because other
	// parameters are the machine's.
	Sysctls map[string]string
	// IPv6Only hosts have no IPv4 address. They cannot forward.
	IPv6Only bool

	// Middlebox and NAT are only for hosts that forward.
	Middlebox Middlebox
	NAT       NAT
	// Balance makes the host use all equally cheap routes. It chooses among them by a flow's addresses and ports, with
	// its own seed. Its ICMP errors are not limited in rate. Balance needs the link emulator. Between veth interfaces,
	// packets keep the hash of the socket that sent them, which is random, and the kernel's routing uses that instead
	// of the ports.
	Balance bool
	// Quotes and ICMP select how the host answers packets whose time to live ends at it.
	Quotes middlebox.Quotes
	ICMP   middlebox.ICMP
}

// LinkParams describes one direction of a link.
type LinkParams = emulink.Params

// Impairments are the part of LinkParams that only the link emulator supports. netem's models differ, and netem cannot
// tamper.
type Impairments = emulink.Impairments

// LinkStats counts packets in one direction of a link. The netem and veth backends cannot distinguish loss
// from queue drops (all are QueueDrops) and measure no lateness.
type LinkStats = emulink.Stats

// LinkSpec is a point-to-point link between two hosts.
type LinkSpec struct {
	Name       string
	A, B       string // host names
	AtoB, BtoA LinkParams
	Cost       int // for routing; 0 counts as 1
	MTU        int // of IP packets; 0 is 1500
	Radio      Radio
}

// Radio is the radio of a mobile device on a link. It needs BackendEmulator.
type Radio = emulink.Radio

// The backends with which a network can be built.
const (
	BackendAuto     = ""      // netem where the kernel has it and no link is impaired, otherwise the emulator
	BackendNetem    = "netem" // the kernel's sch_netem between veth pairs
	BackendEmulator = "wire"  // the link emulator of lab/emulink, in user space
	BackendVeth     = "veth"  // plain veth: as fast as the kernel, shapes nothing
)

// Spec describes a network.
type Spec struct {
	Hosts   []HostSpec
	Links   []LinkSpec
	Seed    uint64 // of all random behaviour of links
	Backend string
}

var (
	hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	linkName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
)

const (
	minMTU   = 1280    // required by IPv6 (RFC 8200, section 5)
	maxMTU   = 65521   // the largest of a TUN device
	maxLinks = 1 << 14 // the address plan has room for no more
)

// Validate returns an error for the first mistake in s.
func (s Spec) Validate() error {
	hosts := map[string]bool{}
	for _, h := range s.Hosts {
		if !hostName.MatchString(h.Name) || h.Name == "localhost" {
			return fmt.Errorf("host name %q: use up to 63 letters, digits and dashes, and not \"localhost\"", h.Name)
		}
		if hosts[h.Name] {
			return fmt.Errorf("host %q is declared twice", h.Name)
		}
		hosts[h.Name] = true
	}
	for _, h := range s.Hosts {
		if err := h.validate(s.Links); err != nil {
			return fmt.Errorf("host %q: %w", h.Name, err)
		}
		if (h.inUserSpace() || h.Balance) && s.Backend != BackendAuto && s.Backend != BackendEmulator {
			return fmt.Errorf("host %q: %w", h.Name, errNeedsEmulator)
		}
	}
	if len(s.Links) > maxLinks {
		return fmt.Errorf("%d links: at most %d fit the address plan", len(s.Links), maxLinks)
	}
	links := map[string]bool{}
	for _, l := range s.Links {
		if !linkName.MatchString(l.Name) {
			return fmt.Errorf("link name %q: use up to 63 letters, digits, dots, dashes and underscores", l.Name)
		}
		if links[l.Name] {
			return fmt.Errorf("link %q is declared twice", l.Name)
		}
		links[l.Name] = true
		if err := l.validate(hosts, s.Backend); err != nil {
			return fmt.Errorf("link %q: %w", l.Name, err)
		}
	}
	switch s.Backend {
	case BackendAuto, BackendNetem, BackendEmulator, BackendVeth:
		return nil
	}
	return fmt.Errorf("backend %q is unknown: use %q, %q, %q, or none to choose by what the kernel has",
		s.Backend, BackendNetem, BackendEmulator, BackendVeth)
}

// inUserSpace reports whether the link emulator changes packets at the host.
func (h HostSpec) inUserSpace() bool {
	return h.Middlebox.kind() != middlebox.None || h.Quotes != "" || h.ICMP != ""
}

var errNeedsEmulator = fmt.Errorf("its middlebox, quotes, icmp or balance need backend %q, or none", BackendEmulator)

var errNoForward = errors.New("only a host that forwards can be a middlebox or translate addresses")

func (h HostSpec) validate(links []LinkSpec) error {
	if h.Forward && h.IPv6Only {
		return errors.New("a host that forwards needs IPv4 for the others: it cannot be without")
	}
	if !h.Forward && (h.Middlebox != NoMiddlebox || !h.NAT.isZero()) {
		return errNoForward
	}
	for _, key := range slices.Sorted(maps.Keys(h.Sysctls)) {
		if !strings.HasPrefix(key, "net.") {
			return fmt.Errorf("sysctl %q is the machine's, not the host's: use those that begin with \"net.\"", key)
		}
	}
	if !h.Forward && h.Balance {
		return errors.New("only a host that forwards can balance load")
	}
	if !h.Forward && (h.Quotes != "" || h.ICMP != "") {
		return errors.New("only a host that forwards answers packets of others whose time to live has ended")
	}
	if err := errors.Join(h.Middlebox.validate(), h.Quotes.Validate(), h.ICMP.Validate()); err != nil {
		return err
	}
	return h.NAT.validate(h.Name, links)
}

func (l LinkSpec) validate(hosts map[string]bool, backend string) error {
	for _, end := range []string{l.A, l.B} {
		if !hosts[end] {
			return fmt.Errorf("host %q is not declared", end)
		}
	}
	if l.A == l.B {
		return fmt.Errorf("both ends are host %q: a link joins two hosts", l.A)
	}
	if l.Cost < 0 {
		return fmt.Errorf("cost %d is negative", l.Cost)
	}
	if l.MTU != 0 && (l.MTU < minMTU || l.MTU > maxMTU) {
		return fmt.Errorf("MTU %d is out of range: use %d to %d", l.MTU, minMTU, maxMTU)
	}
	if err := l.Radio.Validate(); err != nil {
		return err
	}
	if l.Radio != (Radio{}) && backend != BackendEmulator {
		return fmt.Errorf("has a radio: use backend %q", BackendEmulator)
	}
	for _, p := range []LinkParams{l.AtoB, l.BtoA} {
		if err := p.Validate(); err != nil {
			return err
		}
		if backend == BackendVeth && p != (LinkParams{}) {
			return fmt.Errorf("has parameters, and backend %q shapes nothing: remove them or the backend", BackendVeth)
		}
		if backend == BackendNetem && p.Impaired() {
			return errNetemImpaired
		}
	}
	return nil
}

var errNetemImpaired = fmt.Errorf("backend %q has no bursts, reordering, duplicates, corruption or tampering: use backend %q",
	BackendNetem, BackendEmulator)

func (l LinkSpec) impaired() bool { return l.AtoB.Impaired() || l.BtoA.Impaired() }

func (l LinkSpec) cost() int { return max(l.Cost, 1) }

func (l LinkSpec) mtu() int {
	if l.MTU == 0 {
		return emulink.DefaultMTU
	}
	return l.MTU
}
