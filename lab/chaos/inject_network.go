package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/testbed"
)

// linkState has the present faults of links, which may overlap.
type linkState struct {
	mu       sync.Mutex
	changes  map[string][]*linkFault
	downs    map[string]int
	dropping map[string]int // waypoints that drop TCP
}

// linkFault changes the parameters of a link.
type linkFault struct {
	change  func(*testbed.LinkParams)
	replies bool // only what goes to the client, which is at the A side of all links
}

func newLinkState() linkState {
	return linkState{changes: map[string][]*linkFault{}, downs: map[string]int{}, dropping: map[string]int{}}
}

// changeLink makes a link worse for a while.
func (s *injector) changeLink(ctx context.Context, k *Strike, f plan.Fault, change func(*testbed.LinkParams)) error {
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
func (s *injector) struckBy(k plan.Kind, link string) (uint64, error) {
	count := effect(k)
	if count == nil {
		return 0, nil
	}
	ab, ba, err := s.w.LinkStats(link)
	return count(ab) + count(ba), err
}

func (s *injector) worsen(ctx context.Context, link string, d time.Duration, fault *linkFault) error {
	err := s.apply(link, func(l *linkState) { l.changes[link] = append(l.changes[link], fault) })
	pause(ctx, d)
	return errors.Join(err, s.apply(link, func(l *linkState) {
		l.changes[link] = slices.DeleteFunc(l.changes[link], func(other *linkFault) bool { return other == fault })
	}))
}

// apply changes the faults of a link and sets its parameters accordingly.
func (s *injector) apply(link string, change func(*linkState)) error {
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
	return s.w.SetLink(link, out, replies)
}

// linkDown makes a link drop everything for a while.
func (s *injector) linkDown(ctx context.Context, link string, d time.Duration) error {
	err := s.count(link, 1)
	pause(ctx, d)
	return errors.Join(err, s.count(link, -1))
}

func (s *injector) count(link string, n int) error {
	return s.links.overlap(s.links.downs, link, n, func(down bool) error { return s.w.LinkDown(link, down) })
}

// overlap adds n to the faults of one sort that something has now. It acts when the first begins or the last
// ends.
func (l *linkState) overlap(faults map[string]int, of string, n int, act func(on bool) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := faults[of] > 0
	faults[of] += n
	if is := faults[of] > 0; is != was {
		return act(is)
	}
	return nil
}

// dropTCP makes a waypoint drop all TCP that it forwards, while its sessions live.
func (s *injector) dropTCP(ctx context.Context, waypoint string, d time.Duration) error {
	err := s.drop(waypoint, 1)
	pause(ctx, d)
	return errors.Join(err, s.drop(waypoint, -1))
}

func (s *injector) drop(waypoint string, n int) error {
	return s.links.overlap(s.links.dropping, waypoint, n, s.w.Host(waypoint).DropForwardedTCP)
}

// flushRules removes all rules of a host, if it has any.
func (s *injector) flushRules(ctx context.Context, k *Strike) error {
	rules, err := s.w.run(ctx, k.Hit, "nft", "list", "ruleset")
	if err == nil && len(rules) == 0 {
		k.miss("it has no rules")
	}
	if err == nil {
		_, err = s.w.run(ctx, k.Hit, "nft", "flush", "ruleset")
	}
	return err
}

// setForAWhile sets a kernel parameter of a host, then sets it back.
func (s *injector) setForAWhile(ctx context.Context, k *Strike, setting string, d time.Duration) error {
	key, value, _ := strings.Cut(setting, "=")
	h := s.w.Host(k.Hit)
	if s.w.plan.IPv6 && strings.HasPrefix(key, "net.ipv4.conf.") {
		k.miss("it is a parameter of IPv4")
		return nil
	}
	if !s.settings.TryLock() {
		k.miss("another parameter is set now")
		return nil
	}
	defer s.settings.Unlock()
	before, err := h.ReadFile("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
	if err != nil {
		return err
	}
	old := strings.TrimSpace(string(before))
	if old == value {
		k.miss("it has this value already")
		return nil
	}
	k.Note = fmt.Sprintf("was %s", old)
	if err := h.Sysctl(key, value); err != nil {
		return err
	}
	pause(ctx, d)
	return h.Sysctl(key, old)
}

// renumber gives the client another address, after a while without any.
func (s *injector) renumber(ctx context.Context, k *Strike, gap time.Duration) error {
	link := s.w.clientLink()
	if err := s.w.TakeAddress(alice, link); err != nil {
		return err
	}
	k.Done = time.Now()
	pause(ctx, gap)
	err := s.w.Renumber(alice, link)
	s.traffic.Renew()
	return err
}

// restartNAT makes the client's NAT forget its connections, and drop everything for a while.
func (s *injector) restartNAT(ctx context.Context, k *Strike, d time.Duration) error {
	if err := s.count(accessLink, 1); err != nil {
		return err
	}
	_, err := s.w.run(ctx, home, "conntrack", "-F")
	k.Done = time.Now()
	pause(ctx, d)
	return errors.Join(err, s.count(accessLink, -1))
}
