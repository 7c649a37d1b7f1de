package membership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// Coordinators have members try whether a waypoint can be reached at its addresses, and announce the results.

const (
	// maxChecks bounds the checks under way. A coordinator then asks another member.
	maxChecks      = 4
	checkAddresses = 8
	checkWithin    = 10 * time.Second // at the most
)

// ErrCannotTell is returned if a try failed because of this host, which tells nothing about the other.
var ErrCannotTell = errors.New("this host cannot tell")

// receiveCheck carries out a check in the background.
func (m *Membership) receiveCheck(ctx context.Context, data []byte) error {
	check, err := parse[enrol.Check](data)
	if err != nil {
		return err
	}
	select {
	case m.checks <- struct{}{}:
	default:
		return nil
	}
	m.work.Go(func() {
		defer func() { <-m.checks }()
		err := m.try(ctx, check)
		if errors.Is(err, ErrCannotTell) {
			return
		}
		answer := enrol.Checked{ID: check.ID, Reachable: err == nil}
		if err != nil {
			answer.Why = oneLine(err)
		}
		line := m.line.Load()
		text, encodeErr := json.Marshal(answer)
		if line == nil || encodeErr != nil || ctx.Err() != nil {
			return
		}
		if err := line.Tell(enrol.TopicChecked, text); err != nil {
			m.log.Debug("membership: the result of a check is not sent", "err", err)
		}
	})
	return nil
}

// try begins a session at one address after the other until one works. It returns ErrCannotTell if this host could try
// none of them.
func (m *Membership) try(ctx context.Context, c enrol.Check) error {
	if len(c.Addresses) == 0 || len(c.Addresses) > checkAddresses {
		return fmt.Errorf("a check must have 1 to %d addresses, not %d", checkAddresses, len(c.Addresses))
	}
	within := min(time.Duration(c.Within)*time.Second, checkWithin)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	punch, said := m.said(ctx, c)
	if !said {
		return ErrCannotTell
	}
	own := m.config.Own()
	var errs []error
	for i, a := range c.Addresses {
		if !enrol.Shares(own, a) {
			continue
		}
		left := time.Until(deadline(ctx)) / time.Duration(len(c.Addresses)-i)
		one, cancel := context.WithTimeout(ctx, left)
		err := m.config.Reach(one, c.Name, netip.AddrPortFrom(a, c.Port), punch)
		cancel()
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrCannotTell) {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		return ErrCannotTell
	}
	return errors.Join(errs...)
}

// said reports whether the member itself has published these addresses. Nobody else may make members send packets there.
// punch reports whether they can be reached only after hole punching.
func (m *Membership) said(ctx context.Context, c enrol.Check) (punch, said bool) {
	if len(c.Record) == 0 {
		return m.awaitSaid(ctx, c)
	}
	signed, err := directory.DecodeRecord(c.Record)
	if err != nil {
		return false, false
	}
	v, err := signed.Verify(m.config.Identity.Trust(), time.Now())
	if err != nil || v.Record.Name != c.Name || !names(&v.Record, c) {
		return false, false
	}
	return v.Record.Punch, true
}

// names reports whether a record has all addresses and the port of a check.
func names(r *directory.Record, c enrol.Check) bool {
	return r.Port == c.Port && !slices.ContainsFunc(c.Addresses, func(a netip.Addr) bool { return !slices.Contains(r.Addresses, a) })
}

// awaitSaid waits until the directory has a record with these addresses. It may arrive a moment after the check.
func (m *Membership) awaitSaid(ctx context.Context, c enrol.Check) (punch, said bool) {
	for range saidWithin / saidEvery {
		m.keeper.View(func(d *directory.Directory) {
			v, ok := d.Get(c.Name)
			said = ok && names(&v.Record, c)
			punch = said && v.Record.Punch
		})
		if said {
			return punch, true
		}
		select {
		case <-ctx.Done():
			return false, false
		case <-time.After(saidEvery):
		}
	}
	return false, false
}

const (
	saidWithin = 3 * time.Second
	saidEvery  = 200 * time.Millisecond
)

func deadline(ctx context.Context) time.Time {
	at, _ := ctx.Deadline()
	return at
}

// oneLine returns an error's text for others.
func oneLine(err error) string {
	const most = 500
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// reachDue requests the list of waypoints that cannot be reached, after each connect.
func (m *Membership) reachDue(ctx context.Context, now time.Time) time.Time {
	if !m.connected() {
		return m.reach.next()
	}
	return m.inquire(ctx, &m.reach, now, func() (func(time.Time), error) {
		answer, err := m.ask(ctx, enrol.TopicReachability, nil)
		if err != nil {
			return nil, err
		}
		word, err := parse[enrol.Reachability](answer)
		return func(now time.Time) {
			m.takeReachability(word, now)
			m.tried = word.You
			m.askAgainWhoTried(now)
		}, err
	})
}

// A waypoint is tried within seconds after it has published its addresses. It asks the coordinators for the result, less
// and less often while nobody reaches it.
const (
	firstTried = time.Second
	lastTried  = 10 * time.Minute
)

// askWhoTried requests the result soon, because this host has published another record.
func (m *Membership) askWhoTried(now time.Time) {
	m.triedSoon = firstTried
	m.reach.at = now.Add(firstTried)
}

func (m *Membership) askAgainWhoTried(now time.Time) {
	own := m.own()
	if own == nil || !own.Record.IsWaypoint() || m.tried != nil && m.tried.Yes > 0 || !m.reach.at.IsZero() {
		return
	}
	m.reach.at = now.Add(m.triedSoon)
	m.triedSoon = min(2*m.triedSoon, lastTried)
}

// receiveReachability takes the coordinators' announcement of which waypoints cannot be reached.
func (m *Membership) receiveReachability(ctx context.Context, data []byte) error {
	word, err := parse[enrol.Reachability](data)
	if err == nil {
		m.post(ctx, func(now time.Time) { m.takeReachability(word, now) })
	}
	return err
}

// takeReachability replaces the last announcement, unless the new one is older.
func (m *Membership) takeReachability(word enrol.Reachability, now time.Time) {
	if word.At.Before(m.word.At) {
		return
	}
	m.word = word
	m.choosing.unreachable = map[string]bool{}
	for _, name := range word.Unreachable {
		m.choosing.unreachable[name] = true
	}
	m.choosing.soon(now)
}

// Reached reports whether others reach a waypoint, as announced by the coordinators; nil if that is not known.
func Reached(word enrol.Reachability, name string) *bool {
	if word.At.IsZero() || slices.Contains(word.Untried, name) {
		return nil
	}
	yes := !slices.Contains(word.Unreachable, name)
	return &yes
}
