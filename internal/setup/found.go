package setup

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/coordinator"
	"github.com/detour-collective/dcol/internal/enrol"
)

// Founding describes the collective to create.
type Founding struct {
	Collective string
	Name       string // of the first member, this host
	// Addresses lists names or IP addresses, without a port, at which members reach this host.
	Addresses []string
}

// Found creates a collective with this host as first member and coordinator. It completes an
// earlier call that was interrupted.
func (h Host) Found(f Founding) (*Membership, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	unlock, err := h.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	request, lans, err := h.request(f.Name)
	if err != nil {
		return nil, err
	}
	founding := coordinator.Founding{Collective: f.Collective, Request: request, LANs: lans}
	founded, err := coordinator.Init(h.coordinatorDir(), founding)
	if errors.Is(err, collective.ErrExists) {
		founded, err = coordinator.InitAgain(h.coordinatorDir(), founding)
	}
	if err != nil {
		return nil, err
	}
	if err := h.writeIdentity(founded.Chain, founded.Roots, founded.Lists); err != nil {
		return nil, err
	}
	// The coordinator is this host itself, whatever address others use for it.
	here := enrol.Endpoint{Name: f.Name, Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(enrol.DefaultPort))}
	err = h.writeConfiguration(configuration{
		By: "init", Collective: f.Collective, Name: f.Name,
		Roles:        []string{string(config.RoleClient), string(config.RoleWaypoint), string(config.RoleCoordinator)},
		Coordinators: []string{here.String()}, Founded: true, Directory: h.coordinatorDir(), Addresses: f.Addresses,
	})
	if err != nil {
		return nil, err
	}
	return h.Member()
}

func (f Founding) check() error {
	if err := collective.CheckCollective(f.Collective); err != nil {
		return err
	}
	if err := collective.CheckName(f.Name); err != nil {
		return fmt.Errorf("this host as a member (--name): %w", err)
	}
	if len(f.Addresses) == 0 {
		return errors.New("no address of this host is known at which members can reach it: give one with --address")
	}
	for _, a := range f.Addresses {
		if err := checkReachable(a); err != nil {
			return fmt.Errorf("--address %s: %w", a, err)
		}
	}
	return nil
}

// checkReachable returns an error if other hosts cannot reach this one at a.
func checkReachable(a string) error {
	ip, err := netip.ParseAddr(a)
	switch {
	case err != nil && portAfter(a):
		return errors.New("leave out the port: [coordinator] listen in the configuration sets it")
	case err != nil && isLocalhost(a), err == nil && !isOfOneHost(ip):
		return errors.New("other hosts cannot reach this host at that address: give the one that they use")
	case err != nil:
		return enrol.CheckHost(a)
	}
	return nil
}

// reserved contains addresses of no host (RFC 1112, 4), and the broadcast address.
var reserved = netip.MustParsePrefix("240.0.0.0/4")

// isOfOneHost reports whether an address can be that of one host, as seen from others. It rejects IPv4 addresses in the
// form of IPv6.
func isOfOneHost(ip netip.Addr) bool {
	return ip.IsGlobalUnicast() && ip.Zone() == "" && !ip.Is4In6() && !reserved.Contains(ip)
}

// isLocalhost reports whether a host name means the local host everywhere (RFC 6761, 6.3).
func isLocalhost(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

func portAfter(a string) bool {
	host, _, err := net.SplitHostPort(a)
	return err == nil && enrol.CheckHost(host) == nil
}

// RootDir returns the folder of the founder's root key, until the founder moves it elsewhere.
func (h Host) RootDir() string { return filepath.Join(h.coordinatorDir(), "root") }
