// Package capture leads connections of this host's programs to the relay: those of the programs in one cgroup, or of
// all. If a connection is to be converted, the kernel redirects its connect() to the relay's listeners on loopback.
// Other connections are left alone. The package keeps the kernel's rules in line with the decisions of
// converter/choice. Only converter/relay may import it.
package capture

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/kernel/bpf/connect"
)

const (
	// checkEvery is the interval at which the kernel's rules are updated without a call of Changed, because knowledge
	// of servers expires, and cgroups are made anew.
	checkEvery = 500 * time.Millisecond
	// lease is the time after which the kernel stops redirecting unless this process renews the lease, which a frozen
	// process cannot.
	lease = 3 * time.Second
)

// Want describes the connections to lead to the relay, and the relay's listeners.
type Want struct {
	At4, At6 netip.AddrPort      // the relay's listeners; zero: there is none
	Table    func() choice.Table // returns the servers to convert
	Spare    []string            // cgroups whose programs connect directly, with all below them
	Agent    uint32              // the agent's process, by [connect.ProcessID]
}

// Capture leads connections to the relay. Open makes it.
type Capture struct {
	hook *connect.Hook
	own  uint32 // this process
	log  *slog.Logger
	poke chan struct{}

	mu      sync.Mutex
	want    *Want // nil: nothing is led to the relay
	problem string
}

// Open prepares for the programs of a cgroup, which is a folder of cgroup v2; empty: all programs. sources are those of
// the previous relay; nil: there was none. The caller must then call Run and Lead.
func Open(cgroup string, sources *ebpf.Map, log *slog.Logger) (*Capture, error) {
	own, err := connect.ProcessID()
	if err != nil {
		return nil, err
	}
	hook, err := connect.Open(cgroup, sources)
	if err != nil {
		return nil, err
	}
	return &Capture{hook: hook, own: own, log: log, poke: make(chan struct{}, 1)}, nil
}

// Close ends the Capture. On connections that were led to the relay, getpeername() then returns the relay's address.
func (c *Capture) Close() error { return c.hook.Close() }

// Run keeps the kernel's rules up to date until ctx ends.
func (c *Capture) Run(ctx context.Context) {
	due := time.NewTicker(checkEvery)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.poke:
		case <-due.C:
		}
		c.check()
	}
}

// Lead leads connections to the relay until Stop.
func (c *Capture) Lead(w Want) {
	c.mu.Lock()
	c.want = &w
	c.mu.Unlock()
	c.Changed()
}

// Changed makes Run update the kernel's rules at once. It must be called when the result of Want.Table has changed.
func (c *Capture) Changed() {
	select {
	case c.poke <- struct{}{}:
	default: // an update is due already
	}
}

// Stop stops leading connections to the relay. When it returns, none is led any more. Open connections continue.
func (c *Capture) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.want = nil
	c.report(c.hook.Pause())
}

// Take returns the server of a connection that was led to the relay, and forgets it.
func (c *Capture) Take(from netip.AddrPort) (server netip.AddrPort, ok bool) {
	return c.hook.Take(from)
}

// Sources returns the map to pass to Open in a relay that takes over the listeners.
func (c *Capture) Sources() *ebpf.Map { return c.hook.Sources() }

func (c *Capture) check() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.want == nil {
		return
	}
	rules, err := c.rules()
	if err == nil {
		err = c.hook.Set(rules)
	}
	if err == nil {
		err = c.hook.Renew(lease)
	} else {
		err = errors.Join(err, c.hook.Pause())
	}
	c.report(err)
}

// rules returns the kernel's rules for the present Want.
func (c *Capture) rules() (connect.Rules, error) {
	t := c.want.Table()
	r := connect.Rules{
		Port4: c.want.At4.Port(), Port6: c.want.At6.Port(),
		Others: t.Others, Servers: t.Servers, Networks: t.Networks, Ports: t.Ports,
		Cgroups: make(map[uint64]struct{}), Processes: map[uint32]struct{}{c.own: {}, c.want.Agent: {}},
	}
	for _, folder := range c.want.Spare {
		id, err := connect.CgroupID(folder)
		if errors.Is(err, fs.ErrNotExist) { // no program is in it now
			continue
		}
		if err != nil {
			return r, err
		}
		r.Cgroups[id] = struct{}{}
	}
	return r, nil
}

// Problem returns the reason why connections that should be led to the relay are not; empty: there is no problem.
func (c *Capture) Problem() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// report notes a problem, and logs it once.
func (c *Capture) report(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != c.problem {
		c.log.Error("programs' connections are not led to the relay", "err", err)
	}
	c.problem = problem
}
