package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// DefaultCongestionControl is set on every new host. The machine's default varies, and experiments must be
// comparable.
const DefaultCongestionControl = "cubic"

// UnknownCongestionError reports a congestion control that is neither in this kernel nor in one of its modules.
type UnknownCongestionError struct {
	Name      string
	Available []string
}

func (e *UnknownCongestionError) Error() string {
	return fmt.Sprintf("this kernel has no congestion control %q; it has %s", e.Name, strings.Join(e.Available, ", "))
}

// SetCongestionControl sets the algorithm for all connections that the host opens or accepts from now on,
// including MPTCP subflows.
//
// A namespace's default can only be an algorithm in the machine's tcp_allowed_congestion_control, which the
// lab does not change. Any other algorithm is set on all of the host's routes instead, where it overrides a
// program's choice. Call it again after adding routes.
//
// The coupled algorithms of dcol are registered for the host's network. The kernel's name for such an algorithm may
// have a number at its end.
func (h *Host) SetCongestionControl(name string) error {
	registered, err := h.coupled.named(name)
	if err != nil {
		return fmt.Errorf("host %s: set %w", h.Name(), err)
	}
	err = h.Do(func() error {
		err := setSysctl("net.ipv4.tcp_congestion_control", registered)
		switch {
		case err == nil:
			return setRouteCongestion("")
		case errors.Is(err, unix.EPERM):
			return setRouteCongestion(registered)
		case errors.Is(err, fs.ErrNotExist):
			available, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
			return &UnknownCongestionError{Name: name, Available: strings.Fields(string(available))}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("host %s: set congestion control %q: %w", h.Name(), name, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.congestion = name
	return nil
}

// restoreCongestionControl gives routes that were added later the host's algorithm.
func (h *Host) restoreCongestionControl() error {
	h.mu.Lock()
	name := h.congestion
	h.mu.Unlock()
	return h.SetCongestionControl(name)
}

// setRouteCongestion sets the algorithm of all routes that leave the host. It removes it if name is empty.
//
// The attribute is locked. Otherwise MPTCP would give a joining subflow the algorithm of its connection's
// first socket, which has the namespace's default and not the route's (sync_socket_options in
// net/mptcp/sockopt.c).
//
// The code edits the kernel's own route messages, because the netlink library does not support the lock.
func setRouteCongestion(name string) error {
	list := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	list.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_UNSPEC}})
	routes, err := list.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, data := range routes {
		msg := nl.DeserializeRtMsg(data)
		attrs, err := nl.ParseRouteAttr(data[msg.Len():])
		if err != nil {
			return fmt.Errorf("read a route: %w", err)
		}
		changed, changes, err := withCongestion(attrs, name)
		if err != nil {
			return err
		}
		if !changes || msg.Type != unix.RTN_UNICAST || leavesBy(attrs) == loopback || leavesBy(attrs) == several {
			continue
		}
		msg.Flags &= unix.RTNH_F_ONLINK // the others are state the kernel reports
		replace := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_REPLACE|unix.NLM_F_CREATE|unix.NLM_F_ACK)
		replace.AddData(msg)
		for _, a := range changed {
			replace.AddData(a)
		}
		if _, err := replace.Execute(unix.NETLINK_ROUTE, 0); err != nil {
			return fmt.Errorf("replace a route: %w", err)
		}
	}
	return nil
}

const (
	loopback = 1 // the index of lo in every network namespace
	// several stands for a route with several next hops. The kernel does not accept such a route in the form in which
	// it reports it. Only routers that balance load have such routes, and these open no connections.
	several = 0
)

// leavesBy returns the index of a route's interface, or several.
func leavesBy(attrs []syscall.NetlinkRouteAttr) uint32 {
	for _, a := range attrs {
		if a.Attr.Type == unix.RTA_OIF && len(a.Value) == 4 {
			return nl.NativeEndian().Uint32(a.Value)
		}
	}
	return 0
}

// withCongestion returns a route's attributes with a locked algorithm, or with none if name is empty. It also
// reports whether that changes anything. It omits the attributes that describe how the route is used.
func withCongestion(attrs []syscall.NetlinkRouteAttr, name string) (changed []*nl.RtAttr, changes bool, err error) {
	metrics, before := nl.NewRtAttr(unix.RTA_METRICS, nil), ""
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_CACHEINFO:
		case unix.RTA_METRICS:
			old, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return nil, false, fmt.Errorf("read a route's metrics: %w", err)
			}
			for _, m := range old {
				switch m.Attr.Type {
				case unix.RTAX_CC_ALGO:
					before = nl.BytesToString(m.Value)
				case unix.RTAX_LOCK: // always from setRouteCongestion: the lab locks nothing else
				default:
					metrics.AddRtAttr(int(m.Attr.Type), m.Value)
				}
			}
		default:
			changed = append(changed, nl.NewRtAttr(int(a.Attr.Type), a.Value))
		}
	}
	if name != "" {
		lock := make([]byte, 4)
		nl.NativeEndian().PutUint32(lock, 1<<unix.RTAX_CC_ALGO)
		metrics.AddRtAttr(unix.RTAX_LOCK, lock)
		metrics.AddRtAttr(unix.RTAX_CC_ALGO, nl.ZeroTerminated(name))
	}
	return append(changed, metrics), before != name, nil
}
