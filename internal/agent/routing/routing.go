// Package routing is the router role: this host forwards packets, and chooses among the equal next hops of its routes by
// the ports of a flow (internal/cflb). The routes are the kernel's. Only package agent may import it.
//
// The role changes how the kernel hashes (the sysctls fib_multipath_hash_policy) and has a program at each interface. Both
// end with it. After a crash the programs choose nothing, and the next start or CleanUp restores the rest.
package routing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/bpf/balance"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// hashPolicies are the sysctls by which the kernel takes next hops from packets' hashes.
var hashPolicies = []string{"net/ipv4/fib_multipath_hash_policy", "net/ipv6/fib_multipath_hash_policy"}

const byPorts = "1"

// ownAddresses is the sysctl that makes the kernel answer with the address of the interface at which a
// packet arrived. Otherwise a router with several links to this one sees the same address on all of them,
// and a discovery takes them for one next hop. IPv6 has no such sysctl.
const ownAddresses = "net/ipv4/icmp_errors_use_inbound_ifaddr"

// Config has the settings of a Routing. All is required.
type Config struct {
	Name     string // of this router, from which its id is derived
	Settings config.Router
	StateDir string
	Log      *slog.Logger
}

// Routing is the role while it is up.
type Routing struct {
	Config
	balancer *balance.Balancer
	record   *netstate.Record
	changes  <-chan struct{}
	stop     context.CancelFunc

	mu      sync.Mutex // of what follows
	routes  []numbered
	foreign bool // routing rules lead to other tables
	failed  error
}

// Start starts the role in the network namespace of the calling thread.
func Start(cfg Config) (_ *Routing, err error) {
	scheme, err := schemeOf(cfg.Settings)
	if err != nil {
		return nil, err
	}
	r := &Routing{Config: cfg}
	if r.balancer, err = balance.Open(functionOf(scheme, cfg.Name)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.end())
		}
	}()
	if r.record, err = netstate.OpenRecord(SysctlRecord(cfg.StateDir)); err != nil {
		return nil, err
	}
	for _, key := range hashPolicies {
		if _, err := r.record.Set(key, byPorts); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	if _, err := r.record.Set(ownAddresses, "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.changes, err = netstate.WatchRoutes(ctx)
	return r, err
}

// schemeOf returns the network's scheme.
func schemeOf(s config.Router) (*cflb.Scheme, error) {
	secret, err := os.ReadFile(s.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("[router] secret_file: %w", err)
	}
	if secret = bytes.TrimSpace(secret); len(secret) == 0 {
		return nil, fmt.Errorf("[router] secret_file: %s is empty: put the network's secret into it", s.SecretFile)
	}
	p, err := cflb.NewPermutation(cflb.Cipher(s.Cipher), cflb.PortsOnly.Bits(), secret)
	if err != nil {
		return nil, fmt.Errorf("[router] cipher: %w", err)
	}
	scheme, err := cflb.New(s.Radix, p)
	if err != nil {
		return nil, fmt.Errorf("[router] radix: %w", err)
	}
	return scheme, nil
}

// functionOf returns the program's constants. The configuration admits only ciphers that it can compute.
func functionOf(s *cflb.Scheme, name string) balance.Function {
	c, _ := s.Constants()
	ciphers := map[cflb.Cipher]balance.Cipher{cflb.Speck: balance.Speck, cflb.Skip32: balance.Skip32, cflb.RC5: balance.RC5}
	return balance.Function{
		Cipher: ciphers[c.Cipher], Keys: c.Keys, Table: c.Table, Radix: c.Radix, Powers: c.Powers, Router: cflb.RouterID(name),
	}
}

// Run follows the kernel's routes and interfaces until ctx ends, and then takes everything back.
func (r *Routing) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return r.end()
		case _, ok := <-r.changes:
			if !ok {
				return errors.Join(errors.New("the kernel's routes cannot be followed any more"), r.end())
			}
			r.follow()
		}
	}
}

// follow gives the program the present routes and interfaces. If they cannot be read, the kernel chooses
// by itself.
func (r *Routing) follow() {
	found, within, err := netstate.MultipathRoutes()
	foreign, err2 := netstate.ForeignRules()
	var routes []numbered
	for _, route := range found {
		routes = append(routes, number(route, r.Settings.Radix))
	}
	err = errors.Join(err, err2, r.balancer.Set(programmed(routes, within)), r.attach())
	if err != nil {
		r.Log.Error("the choice of next hops may be incomplete", "err", err)
	}
	r.Log.Debug("routes are followed", "multipath", len(routes), "chosen", chosen(routes))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routes, r.foreign, r.failed = routes, foreign, err
}

func (r *Routing) attach() error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list the interfaces: %w", err)
	}
	var all []int
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback == 0 {
			all = append(all, i.Index)
		}
	}
	return r.balancer.Attach(all)
}

func (r *Routing) end() error {
	if r.stop != nil {
		r.stop()
	}
	err := r.balancer.Close()
	if r.record != nil {
		err = errors.Join(err, r.record.Restore())
	}
	return err
}

// Status returns the role's part of the agent's status, and what prevents it from working fully.
func (r *Routing) Status() (*api.Router, []string, error) {
	counts, err := r.balancer.Counts()
	if err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &api.Router{Cipher: r.Settings.Cipher, Radix: r.Settings.Radix, Decoded: counts.Decoded, Hashed: counts.Hashed, Routes: []api.BalancedRoute{}}
	for _, n := range r.routes {
		s.Routes = append(s.Routes, describe(n))
	}
	problems := problemsOf(r.routes, r.Settings.Radix)
	if r.failed != nil {
		problems = append(problems, fmt.Sprintf("the choice of next hops by ports may be incomplete: %v", r.failed))
	}
	if r.foreign {
		problems = append(problems, "routing rules lead packets to tables other than main: their next hops are not chosen by ports (see ip rule)")
	}
	if v, err := netstate.Sysctl("net/ipv4/ip_forward"); err == nil && v == "0" {
		problems = append(problems, "this host does not forward packets, so it is no router: set the sysctls net.ipv4.ip_forward and net.ipv6.conf.all.forwarding to 1")
	}
	return s, problems, nil
}

// problemsOf returns the problems that the operator can fix.
func problemsOf(routes []numbered, radix int) (problems []string) {
	for _, n := range routes {
		if n.left == leftRadix {
			problems = append(problems, fmt.Sprintf("the route to %v has %d next hops, more than the radix %d: the kernel chooses alone. "+
				"Use a larger radix at all routers and sources of the network", n.Prefix, len(n.slots), radix))
		}
	}
	return problems
}

func describe(n numbered) api.BalancedRoute {
	out := api.BalancedRoute{Prefix: n.Prefix, NextHops: []api.NextHop{}, Left: n.left}
	for _, hop := range n.NextHops {
		name := fmt.Sprint(hop.Interface)
		if i, err := net.InterfaceByIndex(hop.Interface); err == nil {
			name = i.Name
		}
		out.NextHops = append(out.NextHops, api.NextHop{Gateway: hop.Gateway, Interface: name, Dead: hop.Dead})
	}
	return out
}

// SysctlRecord is the file that remembers, across a crash, the sysctls from before the role.
func SysctlRecord(stateDir string) string { return filepath.Join(stateDir, "router-sysctls.json") }

// CleanUp removes what a killed role has left.
func CleanUp(stateDir string) error {
	record, err := netstate.OpenRecord(SysctlRecord(stateDir))
	if err == nil {
		err = record.Restore()
	}
	return errors.Join(err, balance.CleanUp())
}
