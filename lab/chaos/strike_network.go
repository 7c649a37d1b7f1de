package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/testbed"
)

// linkState is what is wrong with links now: faults may overlap.
type linkState struct {
	mu       sync.Mutex
	changes  map[string][]*linkFault
	downs    map[string]int
	dropping map[string]int // waypoints that drop TCP
}

// linkFault is what makes a link worse.
type linkFault struct {
	change  func(*testbed.LinkParams)
	replies bool // only what goes to the client, which is at the A side of all links
}

func newLinkState() linkState {
	return linkState{changes: map[string][]*linkFault{}, downs: map[string]int{}, dropping: map[string]int{}}
}

// changeLink has a link be worse for a while.
func (s *striker) changeLink(ctx context.Context, k *Strike, f plan.Fault, change func(*testbed.LinkParams)) error {
	before, err := s.struckBy(f.Kind, k.Hit)
	if err != nil {
		return err
	}
	err = s.worsen(ctx, k.Hit, f.For.Std(), &linkFault{change, f.Kind == plan.TamperReplies})
	after, failed := s.struckBy(f.Kind, k.Hit)
	if effect(f.Kind) != nil {
		k.Note = fmt.Sprintf("%d packets", after-before)
		if after == before {
			k.miss("it struck no packet")
		}
	}
	return errors.Join(err, failed)
}

// struckBy counts the packets of a link that a kind of fault struck so far.
func (s *striker) struckBy(k plan.Kind, link string) (uint64, error) {
	count := effect(k)
	if count == nil {
		return 0, nil
	}
	ab, ba, err := s.w.net.LinkStats(link)
	return count(ab) + count(ba), err
}

func (s *striker) worsen(ctx context.Context, link string, d time.Duration, fault *linkFault) error {
	err := s.apply(link, func(l *linkState) { l.changes[link] = append(l.changes[link], fault) })
	pause(ctx, d)
	return errors.Join(err, s.apply(link, func(l *linkState) {
		l.changes[link] = slices.DeleteFunc(l.changes[link], func(other *linkFault) bool { return other == fault })
	}))
}

// apply changes what is wrong with a link and tells the network.
func (s *striker) apply(link string, change func(*linkState)) error {
	l := &s.links
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
	out, replies := s.w.base[link], s.w.base[link]
	for _, f := range l.changes[link] {
		f.change(&replies)
		if !f.replies {
			f.change(&out)
		}
	}
	return s.w.net.SetLink(link, out, replies)
}

// linkDown has a link lose everything for a while.
func (s *striker) linkDown(ctx context.Context, link string, d time.Duration) error {
	err := s.count(link, 1)
	pause(ctx, d)
	return errors.Join(err, s.count(link, -1))
}

func (s *striker) count(link string, n int) error {
	l := &s.links
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.downs[link] > 0
	l.downs[link] += n
	if is := l.downs[link] > 0; is != was {
		return s.w.net.LinkDown(link, is)
	}
	return nil
}

// dropTCP has a waypoint lose all TCP that it forwards, while its sessions live.
func (s *striker) dropTCP(ctx context.Context, waypoint string, d time.Duration) error {
	err := s.drop(waypoint, 1)
	pause(ctx, d)
	return errors.Join(err, s.drop(waypoint, -1))
}

func (s *striker) drop(waypoint string, n int) error {
	l := &s.links
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.dropping[waypoint] > 0
	l.dropping[waypoint] += n
	if is := l.dropping[waypoint] > 0; is != was {
		return s.w.host(waypoint).DropForwardedTCP(is)
	}
	return nil
}

// flushRules removes all rules of a host, if it has any.
func (s *striker) flushRules(ctx context.Context, k *Strike) error {
	rules, err := s.w.run(ctx, k.Hit, "nft", "list", "ruleset")
	if err == nil && len(rules) == 0 {
		k.miss("it has no rules")
	}
	if err == nil {
		_, err = s.w.run(ctx, k.Hit, "nft", "flush", "ruleset")
	}
	return err
}

// renumber gives the client another address, after a while without any.
func (s *striker) renumber(ctx context.Context, gap time.Duration) error {
	link := s.w.clientLink()
	if err := s.w.net.TakeAddress(alice, link); err != nil {
		return err
	}
	pause(ctx, gap)
	err := s.w.net.Renumber(alice, link)
	s.traffic.Renew()
	return err
}

// restartNAT has the client's NAT lose its connections, and everything for a while.
func (s *striker) restartNAT(ctx context.Context, d time.Duration) error {
	if err := s.count(accessLink, 1); err != nil {
		return err
	}
	_, err := s.w.run(ctx, home, "conntrack", "-F")
	pause(ctx, d)
	return errors.Join(err, s.count(accessLink, -1))
}
