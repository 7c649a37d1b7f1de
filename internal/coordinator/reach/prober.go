// Package reach tests the addresses of members by letting members try each other's. So a record gets into the directory
// only with addresses that are the member's own (claims.go), and all members learn which waypoints are unreachable
// (rounds.go). prober.go sends the requests and takes the answers.
package reach

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/coordinator/loop"
	"github.com/detour-collective/dcol/internal/enrol"
)

const (
	roundTick = time.Second
	claimTick = 200 * time.Millisecond
	// announceEvery bounds the time until a member that has missed an announcement learns which waypoints cannot be
	// reached.
	announceEvery = 10 * time.Minute
	// untriedEvery bounds the time until all members learn that more waypoints were tried. After a start there are many.
	untriedEvery = 5 * time.Second
	maxChecked   = 1 << 10 // bytes
)

// Bus is the Prober's access to the bus.
type Bus interface {
	Tell(to, topic string, data []byte) error
	TellAll(topic string, data []byte) error
	// MayBeConnected reports whether a member is connected, or may be because that is not known.
	MayBeConnected(name string) bool
	// Addresses returns the addresses a member is connected from, as far as is known.
	Addresses(name string) []netip.Addr
}

// Directory calls a function with the directory, and reports whether there is one.
type Directory func(func(*directory.Directory)) bool

// Prober asks members to try each other's addresses. It is safe for concurrent use.
type Prober struct {
	self    string // name of the coordinator's own host
	bus     Bus
	clock   func() time.Time
	log     *slog.Logger
	rounds  *rounds
	claims  *claims
	claimed chan struct{} // has a value when there is an address to try, or an answer
}

// NewProber returns a prober that knows nothing yet.
func NewProber(self string, b Bus, clock func() time.Time, log *slog.Logger) *Prober {
	return &Prober{
		self: self, bus: b, clock: clock, log: log, rounds: newRounds(mathrand.IntN), claims: newClaims(self, mathrand.IntN),
		claimed: make(chan struct{}, 1),
	}
}

// Run lets addresses be tried until ctx ends.
func (p *Prober) Run(ctx context.Context, d Directory) {
	var running sync.WaitGroup
	running.Go(func() { p.runRounds(ctx, d) })
	running.Go(func() { p.runClaims(ctx, d) })
	running.Wait()
}

// runRounds asks members to try waypoints, and tells all members which waypoints cannot be reached.
func (p *Prober) runRounds(ctx context.Context, d Directory) {
	announced := time.Now()
	var untried []string // as announced last
	for loop.Wait(ctx, roundTick, nil) {
		now := p.clock()
		changed := p.rounds.close(now)
		if waypoints, ok := waypoints(d); ok {
			p.rounds.follow(waypoints, now)
			p.ask(p.rounds.next(p.present(d), now, rand.Text))
		}
		now = time.Now()
		wait := announceEvery
		if !slices.Equal(p.rounds.untried(), untried) {
			wait = untriedEvery
		}
		if !changed && now.Sub(announced) < wait {
			continue
		}
		untried = p.rounds.untried()
		data, err := p.Reachability("")
		if err == nil {
			err = p.bus.TellAll(enrol.TopicReachability, data)
		}
		if err == nil {
			announced = now
		}
	}
}

// waypoints returns the waypoints in the directory.
func waypoints(d Directory) (out []waypoint, ok bool) {
	ok = d(func(d *directory.Directory) {
		for v := range d.All() {
			if v.Record.IsWaypoint() {
				out = append(out, waypoint{v.Record.Name, v.Record.Addresses, v.Record.Port, v.Record.Punch})
			}
		}
	})
	return out, ok
}

// runClaims asks members to try addresses in new records.
func (p *Prober) runClaims(ctx context.Context, d Directory) {
	wait := time.Hour
	for loop.Wait(ctx, wait, p.claimed) {
		now := p.clock()
		p.claims.close(now)
		if d(func(*directory.Directory) {}) {
			p.ask(p.claims.next(p.present(d), now, rand.Text))
		}
		if wait = time.Hour; p.Trying() {
			wait = claimTick
		}
	}
}

// Trying reports whether any member's claim is being tried.
func (p *Prober) Trying() bool { return p.claims.some() }

// present returns the members that can be asked.
func (p *Prober) present(d Directory) (names []string) {
	d(func(d *directory.Directory) {
		for v := range d.All() {
			if p.bus.MayBeConnected(v.Record.Name) {
				names = append(names, v.Record.Name)
			}
		}
	})
	slices.Sort(names)
	return names
}

// ask sends orders to the members that are to try.
func (p *Prober) ask(orders []order) {
	for _, o := range orders {
		data, err := json.Marshal(o.Check)
		for _, to := range o.to {
			if err == nil {
				err = p.bus.Tell(to, enrol.TopicCheck, data)
			}
		}
		if err != nil {
			p.log.Debug("coordinator: members cannot be asked to test a waypoint", "waypoint", o.Name, "err", err)
		}
	}
}

// Answered takes in the result of a member that was asked to try an address.
func (p *Prober) Answered(from string, data []byte) error {
	if len(data) > maxChecked {
		return fmt.Errorf("the answer to a check has %d bytes, at most %d are allowed", len(data), maxChecked)
	}
	var checked enrol.Checked
	if err := json.Unmarshal(data, &checked); err != nil {
		return fmt.Errorf("read the answer to a check: %w", err)
	}
	p.rounds.answered(from, checked)
	p.claims.answered(from, checked)
	loop.Wake(p.claimed)
	return nil
}

// Reachability returns the message that names the unreachable waypoints, as many as fit. If asks is not empty, the
// message includes the result of that member's last test.
func (p *Prober) Reachability(asks string) ([]byte, error) {
	m := enrol.Reachability{
		At: p.clock().UTC().Truncate(time.Second), Unreachable: p.rounds.unreachable(), Untried: p.rounds.untried(), You: p.rounds.tried(asks),
	}
	for {
		data, err := json.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("write which waypoints cannot be reached: %w", err)
		}
		if len(data) <= bus.MaxPayload {
			return data, nil
		}
		if len(m.Unreachable)+len(m.Untried) == 0 {
			return nil, errors.New("write which waypoints cannot be reached: the message is too large")
		}
		m.Unreachable = m.Unreachable[:len(m.Unreachable)*bus.MaxPayload/len(data)]
		m.Untried = m.Untried[:len(m.Untried)*bus.MaxPayload/len(data)]
	}
}

// Claim starts the tests of the addresses in a member's record. It leaves out private addresses, because they lead to
// other hosts in other networks, unless the member is connected from a private network of ours.
func (p *Prober) Claim(name string, record []byte, addresses []netip.Addr, port uint16) {
	from := p.bus.Addresses(name)
	try := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return !enrol.Shares(from, a) })
	p.claims.try(name, record, try, port, p.clock())
	loop.Wake(p.claimed)
}

// Claiming reports whether addresses of a member are being tried.
func (p *Prober) Claiming(name string) bool { return p.claims.pending(name) }

// Unshown returns the addresses in r that are not known to be the member's own. An address is known if the member is
// connected from there, if others have reached the member there, or if it is in have, the record in the directory, and
// the member can be reached. This host is trusted with its own addresses.
func (p *Prober) Unshown(r, have *directory.Record) []netip.Addr {
	if r.Name == p.self {
		return nil
	}
	known := p.bus.Addresses(r.Name)
	if v, judged := p.rounds.of(r.Name); have != nil && (!judged || v.Reachable) {
		known = append(known, have.Addresses...)
	}
	return slices.DeleteFunc(slices.Clone(r.Addresses), func(a netip.Addr) bool {
		return slices.Contains(known, a) || p.claims.has(r.Name, a)
	})
}

// Show records that an address is a member's own.
func (p *Prober) Show(name string, address netip.Addr) { p.claims.show(name, address) }

// Heard records that a member has just sent something.
func (p *Prober) Heard(name string) { p.rounds.heard(name, p.clock()) }

// Of returns the verdict on a waypoint; false: there is none yet.
func (p *Prober) Of(name string) (Verdict, bool) { return p.rounds.of(name) }

// Unreachable returns the waypoints that cannot be reached, sorted.
func (p *Prober) Unreachable() []string { return p.rounds.unreachable() }

// Keep forgets everything about hosts that are not members.
func (p *Prober) Keep(isMember func(name string) bool) { p.claims.keep(isMember) }
