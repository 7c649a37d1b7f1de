package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/mptcpify"
	"github.com/detour-collective/dcol/internal/nat"
)

// Env contains everything that checks may access.
type Env struct {
	FS     fs.FS // rooted at /
	System System
	Now    time.Time
	Built  time.Time // when this program was built; zero if unknown

	Config        Config
	Identity      Identity
	Collective    *Collective // reported by the agent; nil: unknown, or no collective joined
	AgentRuns     bool
	AgentUnasked  error       // why a running agent could not be queried; nil: it was queried, or none runs
	AgentProblems []string    // reported by the agent
	Outside       *Outside    // how others reach it, as reported by the agent; nil: unknown
	Converting    *Converting // as reported by the agent; nil: unknown, or it is no client
	Converter     *Converter  // as reported by the agent; nil: it does not run
	Unannounced   Unannounced // as reported by the agent
	Choice        *Choice     // as reported by the agent; nil: unknown, or it is no client
	Sampling      *Sampling   // as reported by the agent; nil: all active connections are measured, as far as is known
}

// Sampling counts the active connections with a detour, and those that are measured now (api.Sampling).
type Sampling struct{ Active, Measured int }

// Choice is the operator's choice of waypoints (api.Steering).
type Choice struct {
	Unknown []string // names that are no waypoint's
	Warning string   // why no waypoint is used: none that may be used works, or all are avoided; empty: one is
}

// Outside describes how others reach this waypoint over IPv4, as the agent found out (api.Outside).
type Outside struct {
	Address         netip.AddrPort // where others reach it; may be invalid
	Leaves          nat.Leaves
	NAT             string // description
	Why             string // why Leaves is not known
	Asked, Answered int    // members
	Own             netip.Addr
	Router          string // the protocol it speaks
	Opened          bool   // by the router
	Problem, Fix    string // of the router
	Punches         bool   // members can reach it with a coordinator's help
}

// Unannounced describes where the agent announces no TCP options for a while, because SYNs that announced them were lost.
type Unannounced struct {
	Networks []netip.Prefix
	Internet bool
}

// Config holds settings from the agent's configuration file.
type Config struct {
	Path     string
	Err      error // why it cannot be used; fs.ErrNotExist if there is none
	Client   bool
	Waypoint bool
	Listen   string // UDP address of the session
	Joined   bool   // joined a collective, whose coordinators renew the certificate

	// Settings of the client: the kinds of detours in use, and the cgroup whose programs use in-band ones (empty: all
	// programs).
	Kinds  []string
	Cgroup string
	// Settings of the waypoint: the kinds offered, whether in-band SYNs are authenticated, and
	// OpenVPN's UDP port.
	Offers        []string
	Authenticator bool
	OpenVPNPort   int
	PortMapping   bool // ask the router to open ports
	Bandwidth     bool // the bandwidth of all members together is limited
	// SendsFastOpen is set if the client sends data in SYNs to converters, TakesFastOpen if the converter takes it.
	SendsFastOpen, TakesFastOpen bool
	Marks                        uint32 // the waypoint's bits in marks
	// TunnelMark is the mark, within these bits, of packets to converters that may leave by tunnels only; 0: there is
	// none.
	TunnelMark uint32
	// Congestion lists the congestion controls of the tables [[congestion]].
	Congestion []string
	// Options is set if TCP options are exchanged with others.
	Options bool
}

// uses reports whether the client uses the kind.
func (c Config) uses(kind string) bool { return c.Client && slices.Contains(c.Kinds, kind) }

// offers reports whether the waypoint offers the kind.
func (c Config) offers(kind string) bool { return c.Waypoint && slices.Contains(c.Offers, kind) }

// Identity is this member's certificate.
type Identity struct {
	Err       error // why it cannot be used
	NotBefore time.Time
	NotAfter  time.Time
}

// Collective is the running agent's state towards its coordinators.
type Collective struct {
	Connected bool
	Why       string // why it is not connected
	Members   int    // known members
	Renewal   string // why the last renewal failed; empty: it succeeded
	Expelled  string // why the collective expelled this host; empty: it did not
	// Unreached is set if other members cannot reach this waypoint.
	Unreached bool
}

// System provides facts that are not in files.
type System struct {
	SocketMethods func() []mptcpify.Method
	// ForwardDrops returns the nftables chains ("family table chain") that drop forwarded packets
	// by policy.
	ForwardDrops func() ([]string, error)
	// MarkUses returns the rules of other programs that concern the marks of forwarded packets and of
	// their connections.
	MarkUses func() ([]netstate.MarkUse, error)
	// Endpoints returns the number of endpoints of the kernel's own path manager.
	Endpoints func() (int, error)
	// PlainTCP reports whether the kernel at present makes new MPTCP connections plain TCP, because it
	// suspects the network of dropping MPTCP.
	PlainTCP func() (bool, error)
	// ListenUDP tests whether the address can be bound.
	ListenUDP func(address string) error
	// ClockSynchronised reports whether the kernel considers its clock synchronised.
	ClockSynchronised func() (bool, error)
	// AskRouter returns this host's address towards the Internet and, if that is private, the
	// protocol by which the router opens ports.
	AskRouter func(context.Context) (own netip.Addr, protocol string, err error)
	// FindOpenVPN returns the program's path and version.
	FindOpenVPN func() (path, version string, err error)

	// Trials leave no trace. They return errCannotTry if a trial was impossible.

	TryInBandSender   func(cgroup string) error
	TryInBandReceiver func() error
	// TryWireGuard returns the available implementation: "kernel" or "userspace".
	TryWireGuard     func() (kind string, err error)
	TryTunnelRouting func() error
	// TryCongestion tests whether connections can use a congestion control, one of dcol's or of the kernel's.
	TryCongestion func(name string) error
	TryOptions    func() error // exchanging TCP options
	// TryFastOpen returns the reason why MPTCP listeners accept no data in SYNs, or nil.
	TryFastOpen func() error
	// TryFallback reports whether connections that became plain TCP can lose data, as mptcp.LosesOverlaps does.
	TryFallback func() (loses bool, err error)
}

// untold returns the result for a fact that only the agent could judge, when the agent could not be
// queried.
func (e *Env) untold(format string, args ...any) Result {
	fact := fmt.Sprintf(format, args...)
	if errors.Is(e.AgentUnasked, fs.ErrPermission) {
		return skipped("%s; only root can tell: sudo dcol doctor", fact)
	}
	return skipped("%s; cannot tell, because the agent could not be asked (see Agent)", fact)
}

// read returns a file's content without surrounding white space.
func (e *Env) read(name string) (string, error) {
	data, err := fs.ReadFile(e.FS, name)
	return strings.TrimSpace(string(data)), err
}

// sysctl reads a key with slashes, such as net/ipv4/ip_forward.
func (e *Env) sysctl(key string) (string, error) { return e.read("proc/sys/" + key) }

func (e *Env) sysctlInt(key string) (int, error) {
	text, err := e.sysctl(key)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// running returns which of the programs have a process, by the kernel's names.
func (e *Env) running(programs ...string) []string {
	files, err := fs.Glob(e.FS, "proc/[0-9]*/comm")
	if err != nil {
		return nil
	}
	var found []string
	for _, file := range files {
		// A process that ended meanwhile has no name.
		if name, err := e.read(file); err == nil && slices.Contains(programs, name) && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

// effective returns this process's effective capabilities as a bit set.
func (e *Env) effective() (uint64, error) {
	status, err := e.read("proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return 0, fs.ErrNotExist
}

// mountsOf returns where file systems of a type are mounted.
func (e *Env) mountsOf(fsType string) ([]string, error) {
	mounts, err := e.read("proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var places []string
	for line := range strings.Lines(mounts) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[2] == fsType {
			places = append(places, path.Clean(fields[1]))
		}
	}
	return places, nil
}
