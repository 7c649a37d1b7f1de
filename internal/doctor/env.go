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

	"github.com/detour-collective/dcol/internal/mptcpify"
	"github.com/detour-collective/dcol/internal/nat"
)

// Env is all that checks may look at.
type Env struct {
	FS     fs.FS // rooted at /
	System System
	Now    time.Time
	Built  time.Time // when this program was built; zero if unknown

	Config        Config
	Identity      Identity
	Collective    *Collective // as the agent says; nil: it has not said, or has joined none
	AgentRuns     bool
	AgentUnasked  error    // why an agent that may well run could not be asked; nil: it was, or there is none
	AgentProblems []string // that it tells of
	Outside       *Outside // what it tells of the way to it; nil: nothing
}

// Outside is how others reach this waypoint over IPv4, as the agent found out (api.Outside).
type Outside struct {
	Address         netip.AddrPort // where; may be invalid
	Leaves          nat.Leaves
	NAT             string // in words
	Why             string // Leaves is not known
	Asked, Answered int    // members
	Own             netip.Addr
	Router          string // the protocol it speaks
	Opened          bool   // by the router
	Problem, Mend   string // of the router
	Punches         bool   // members can have a coordinator tell it to let them in
}

// Config is what the agent's configuration file says.
type Config struct {
	Path     string
	Err      error // why it cannot be used; fs.ErrNotExist if there is none
	Client   bool
	Waypoint bool
	Listen   string // UDP address of the session
	Joined   bool   // a collective, whose coordinators renew the certificate

	// Of the client: the kinds of detours that it uses, and the cgroup whose
	// programs have in-band ones; empty: all.
	Kinds  []string
	Cgroup string
	// Of the waypoint: the kinds that it offers, whether it authenticates in-band
	// SYNs, and the UDP port of OpenVPN.
	Offers        []string
	Authenticator bool
	OpenVPNPort   int
	PortMapping   bool // the router is to open ports
}

// uses reports whether the client wants the kind.
func (c Config) uses(kind string) bool { return c.Client && slices.Contains(c.Kinds, kind) }

// offers reports whether the waypoint is to give the kind.
func (c Config) offers(kind string) bool { return c.Waypoint && slices.Contains(c.Offers, kind) }

// Identity is this member's certificate.
type Identity struct {
	Err       error // why it cannot be used
	NotBefore time.Time
	NotAfter  time.Time
}

// Collective is how the running agent stands with its coordinators.
type Collective struct {
	Connected bool
	Why       string // it is not
	Members   int    // that it knows
	Renewal   string // why the last renewal failed; empty: it did not
	Expelled  string // why the collective has expelled this host
	// Unreached: other members cannot reach this waypoint.
	Unreached bool
}

// System is what is not to be had from files.
type System struct {
	SocketMethods func() []mptcpify.Method
	// ForwardDrops names the nftables chains ("family table chain") that drop
	// forwarded packets by policy.
	ForwardDrops func() ([]string, error)
	// Endpoints counts the endpoints of the kernel's own path manager.
	Endpoints func() (int, error)
	// ListenUDP tries to have the address for a moment.
	ListenUDP func(address string) error
	// ClockSynchronised reports what the kernel thinks of its clock.
	ClockSynchronised func() (bool, error)
	// AskRouter is this host's address towards the Internet and, if that is private, the
	// protocol by which the router opens ports.
	AskRouter func(context.Context) (own netip.Addr, protocol string, err error)
	// FindOpenVPN finds the program, and its version.
	FindOpenVPN func() (path, version string, err error)

	// Trials leave no trace. Their error is errCannotTry where it tells nothing.

	TryInBandSender   func(cgroup string) error
	TryInBandReceiver func() error
	// TryWireGuard says which there is: "kernel" or "userspace".
	TryWireGuard     func() (kind string, err error)
	TryTunnelRouting func() error
}

// untold is the result where only the agent could tell how a fact is to be judged, but it could not be asked.
func (e *Env) untold(format string, args ...any) Result {
	fact := fmt.Sprintf(format, args...)
	if errors.Is(e.AgentUnasked, fs.ErrPermission) {
		return skipped("%s: cannot tell without root; run it as root: sudo dcol doctor", fact)
	}
	return skipped("%s: cannot tell, as the agent could not be asked (see Agent)", fact)
}

// read returns a file without the white space around its content.
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

// running returns those of the programs that have a process, by the names the
// kernel knows them by.
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

// effective returns this process's effective capabilities, a bit each.
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
