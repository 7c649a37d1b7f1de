package mptcp

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Feature is something the kernel must have.
type Feature struct {
	Name      string
	MinKernel string // first version with it
	Mend      string
}

// The features dcol builds on.
var (
	MPTCP = Feature{"MPTCP", "5.6", "boot a kernel built with CONFIG_MPTCP=y"}

	Enabled = Feature{"MPTCP in this network namespace", "5.6", "run: sysctl -w net.mptcp.enabled=1"}

	IPv6 = Feature{"MPTCP over IPv6", "5.6", "boot a kernel built with CONFIG_MPTCP_IPV6=y"}

	Events = Feature{"MPTCP path-manager events", "5.12", "boot a newer kernel"}

	Userspace = Feature{"the userspace path manager of MPTCP", "5.19", "boot a newer kernel"}

	SubflowDiag = Feature{"socket diagnostics of TCP", "5.6",
		"boot a kernel built with CONFIG_INET_TCP_DIAG, or run: modprobe tcp_diag"}

	ConnectionDiag = Feature{"socket diagnostics of MPTCP", "5.9",
		"boot a kernel built with CONFIG_INET_MPTCP_DIAG, or run: modprobe mptcp_diag"}
)

func unsupported(f Feature) error {
	return &UnsupportedError{Feature: f.Name, MinKernel: f.MinKernel, Mend: f.Mend}
}

// FeatureState is what Probe found about a feature.
type FeatureState struct {
	Feature
	Err error // nil: it is there; else an *UnsupportedError, or why it cannot be known
}

// Probe looks for every feature in the calling thread's network namespace and
// changes nothing.
func Probe() []FeatureState {
	var states []FeatureState
	for _, p := range []struct {
		Feature
		probe func(Feature) error
	}{
		{MPTCP, probeMPTCP},
		{Enabled, probeEnabled},
		{IPv6, probeIPv6},
		{Events, probeEvents},
		{Userspace, probeUserspace},
		{SubflowDiag, probeDiag(unix.IPPROTO_TCP)},
		{ConnectionDiag, probeDiag(protocolMPTCP)},
	} {
		states = append(states, FeatureState{p.Feature, p.probe(p.Feature)})
	}
	return states
}

func probeMPTCP(Feature) error {
	s, err := openSysctls()
	if err != nil {
		return err
	}
	return s.close()
}

func probeEnabled(f Feature) error {
	s, err := openSysctls()
	if err != nil {
		return err
	}
	defer s.close()
	enabled, err := s.readInt("enabled")
	if err == nil && enabled == 0 {
		return unsupported(f)
	}
	return err
}

// probeIPv6 makes a socket, which the kernel refuses also where MPTCP is
// switched off, with another error.
func probeIPv6(f Feature) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocolMPTCP)
	switch {
	case errors.Is(err, unix.ENOPROTOOPT):
		return unsupported(Enabled)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL):
		return unsupported(f)
	case err != nil:
		return fmt.Errorf("make an MPTCP socket over IPv6: %w", err)
	}
	return unix.Close(fd)
}

func probeEvents(f Feature) error {
	c, err := genetlink.Dial(nil)
	if err != nil {
		return fmt.Errorf("open generic netlink: %w", err)
	}
	defer c.Close()
	family, err := c.GetFamily(familyName)
	if errors.Is(err, os.ErrNotExist) {
		return unsupported(MPTCP)
	}
	if err != nil {
		return fmt.Errorf("look up generic netlink family %s: %w", familyName, err)
	}
	if !slices.ContainsFunc(family.Groups, func(g genetlink.MulticastGroup) bool { return g.Name == eventGroupName }) {
		return unsupported(f)
	}
	return nil
}

func probeUserspace(f Feature) error {
	s, err := openSysctls()
	if err != nil {
		return err
	}
	defer s.close()
	if names, err := s.read("available_path_managers"); err == nil {
		if !slices.Contains(strings.Fields(names), string(UserspacePM)) {
			return unsupported(f)
		}
		return nil
	}
	if _, err := s.readInt("pm_type"); errors.Is(err, os.ErrNotExist) {
		return unsupported(f)
	} else if err != nil {
		return err
	}
	return nil
}

// probeDiag starts a list of sockets, which fails with ENOENT where the
// protocol has no diagnostics.
func probeDiag(protocol uint16) func(Feature) error {
	return func(f Feature) error {
		d, err := openDiag()
		if err != nil {
			return err
		}
		defer d.close()
		req := diagRequest{family: unix.AF_INET, protocol: protocol}
		err = d.ask(req, netlink.Dump, func([]byte) (bool, error) { return false, nil })
		if errors.Is(err, syscall.ENOENT) {
			return unsupported(f)
		}
		return err
	}
}
