package portmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// renewEvery bounds the time until a restart of the router or a change of its address is noticed,
	// because renewing detects both. It costs one packet or request each way.
	renewEvery = time.Minute
	// findEvery is the time after which a router that opens no ports is asked again.
	findEvery = 10 * time.Minute
	// anewAfter is the number of failures after which the protocol is detected again, because the
	// router may have been replaced.
	anewAfter = 2
	// closeTimeout bounds the wait for the router when the agent ends.
	closeTimeout = 2 * time.Second
)

// Config configures a Keeper.
type Config struct {
	Wants []Want
	// Network returns the host's current network. Without a gateway, no router is asked.
	Network func() (Network, error)
	// Nonce identifies our mappings to PCP. After a crash, the same nonce renews existing ones.
	Nonce [12]byte
	// Changed is called after every change. It must not block and may be nil.
	Changed func(State)
	Log     *slog.Logger
}

// State is the state of the ports.
type State struct {
	Router   string // the router's protocol; empty: none found
	Network  Network
	Mappings []Mapping // open ones, in the order of the wants
	Restarts int       // of the router, if it reports them
	// Problem is the reason why a port is not open, and Fix tells the operator what to do about it.
	Problem, Fix string
}

// External returns the address at which a port is reached from outside.
func (s State) External(w Want) (netip.AddrPort, bool) {
	for _, m := range s.Mappings {
		if m.Want == w {
			return m.External, true
		}
	}
	return netip.AddrPort{}, false
}

// Keeper keeps ports open.
type Keeper struct {
	config Config
	find   func(context.Context, Network, [12]byte) (router, error)
	moved  chan struct{}

	router   router
	failures int
	epoch    epoch

	mu    sync.Mutex
	state State
}

// NewKeeper returns a Keeper. Run must be called to start it.
func NewKeeper(c Config) *Keeper {
	return &Keeper{config: c, find: find, moved: make(chan struct{}, 1)}
}

// State returns the current state.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.state
	s.Mappings = slices.Clone(s.Mappings)
	return s
}

// NetworkChanged reports that this host's addresses or routes have changed.
func (k *Keeper) NetworkChanged() {
	select {
	case k.moved <- struct{}{}:
	default: // an earlier change is still pending
	}
}

// Run keeps the ports open until ctx ends, and then closes them.
func (k *Keeper) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		k.rest(ctx, k.step(ctx))
	}
	// The router is asked to close the ports although ctx has ended.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	k.close(closing)
	return nil
}

// rest waits, or returns early when the host's network changes.
func (k *Keeper) rest(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-k.moved:
			if n, err := k.config.Network(); err != nil || n != k.State().Network {
				return
			}
		}
	}
}

// step opens and renews ports, and returns the time until the next step.
func (k *Keeper) step(ctx context.Context) time.Duration {
	s := k.State()
	network, err := k.config.Network()
	if err != nil {
		k.router = nil
		k.set(State{
			Restarts: s.Restarts, Problem: fmt.Sprintf("there is no router to ask to open a port: %v", err), Fix: "connect the host to a network",
		})
		return renewEvery
	}
	if !network.Gateway.IsValid() {
		k.router = nil
		k.set(State{Network: network, Restarts: s.Restarts})
		return renewEvery
	}
	if network != s.Network || k.failures >= anewAfter {
		if network != s.Network {
			s = State{Network: network, Restarts: s.Restarts} // mappings of another router are useless
		}
		k.router, k.failures, k.epoch = nil, 0, epoch{}
	}
	if k.router == nil {
		if k.router, err = k.find(ctx, network, k.config.Nonce); err != nil {
			k.router, s.Router, s.Mappings = nil, "", nil
			if errors.Is(err, ErrNoProtocol) {
				k.config.Log.Debug("the router opens no ports", "router", network.Gateway, "err", err)
				err = errors.New("it speaks neither PCP nor NAT-PMP nor UPnP") // the errors of each do not help the user
			}
			s.Problem, s.Fix = fmt.Sprintf("the router %v opens no ports: %v", network.Gateway, err), k.byHand(network)
			k.set(s)
			return findEvery
		}
		s.Router = k.router.String()
	}
	s = k.renew(ctx, s)
	k.set(s)
	if len(s.Mappings) < len(k.config.Wants) && k.failures == 0 { // refused
		return findEvery
	}
	return renewEvery
}

// renew asks for every port.
func (k *Keeper) renew(ctx context.Context, s State) State {
	before := s
	now := time.Now()
	s.Mappings, s.Problem, s.Fix = nil, "", ""
	complain := func(format string, args ...any) {
		if s.Problem == "" { // the first port matters most
			s.Problem, s.Fix = fmt.Sprintf(format, args...), k.byHand(s.Network)
		}
	}
	failed := false
	for _, w := range k.config.Wants {
		last, open := before.External(w)
		proposed := w.Port
		if open {
			proposed = last.Port()
		}
		g, err := k.router.open(ctx, w, proposed)
		if err == nil && (!g.external.IsValid() || g.external.Addr().IsUnspecified() || g.external.Port() == 0) {
			err = errors.New("it has no external address")
		}
		if err == nil && g.timed && k.epoch.next(g.epoch, now) {
			s.Restarts++
			k.config.Log.Info("the router has restarted; asking it again to open ports", "router", s.Network.Gateway)
		}
		switch {
		case err == nil:
			m := Mapping{Want: w, External: g.external}
			if g.lifetime > 0 {
				m.Until = now.Add(g.lifetime)
			}
			s.Mappings = append(s.Mappings, m)
			continue
		case refused(err):
			complain("port %v: %v", w, err)
			continue
		}
		failed = true
		complain("the router %v has not opened port %v: %v", s.Network.Gateway, w, err)
		// The mapping stays open for its remaining lifetime.
		for _, m := range before.Mappings {
			if m.Want == w && (m.Until.IsZero() || now.Before(m.Until)) {
				s.Mappings = append(s.Mappings, m)
			}
		}
	}
	if k.failures++; !failed {
		k.failures = 0
	}
	return s
}

func refused(err error) bool {
	var r *RefusedError
	return errors.As(err, &r)
}

// byHand returns what an operator can do without the router's help.
func (k *Keeper) byHand(n Network) string {
	text := "enable UPnP or PCP in the router's settings, or let it forward"
	for i, w := range k.config.Wants {
		if i > 0 {
			text += " and"
		}
		text += " port " + w.String()
	}
	return fmt.Sprintf("%s to %v", text, n.Own)
}

func (k *Keeper) set(s State) {
	k.mu.Lock()
	before := k.state
	k.state = s
	k.mu.Unlock()
	for _, m := range s.Mappings {
		if at, open := before.External(m.Want); !open || at != m.External {
			k.config.Log.Info("the router has opened a port", "port", m.Want.String(), "outside", m.External, "by", s.Router)
		}
	}
	if s.Problem != "" && s.Problem != before.Problem {
		k.config.Log.Warn("port mapping", "problem", s.Problem, "fix", s.Fix)
	}
	if k.config.Changed != nil && changed(before, s) {
		k.config.Changed(s)
	}
}

// changed compares states without their leases' ends.
func changed(a, b State) bool {
	return a.Router != b.Router || a.Network != b.Network || a.Problem != b.Problem || a.Restarts != b.Restarts ||
		!slices.EqualFunc(a.Mappings, b.Mappings, func(a, b Mapping) bool { return a.Want == b.Want && a.External == b.External })
}

func (k *Keeper) close(ctx context.Context) {
	if k.router == nil {
		return
	}
	for _, m := range k.State().Mappings {
		if err := k.router.close(ctx, m.Want, m.External.Port()); err != nil {
			k.config.Log.Warn("a port may stay open at the router until its lease expires", "port", m.Want.String(), "until", m.Until, "err", err)
		}
	}
	k.set(State{})
}
