// Package rulestest fakes a waypoint's table without a kernel, for tests. Its clock is time.Now, so that
// testing/synctest can move it.
package rulestest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Fake implements rules.Kernel in memory, with the kernel's errors.
type Fake struct {
	mu      sync.Mutex
	options rules.Options
	present bool
	written rules.Options // the options with which the present table was written
	table   contents

	commits int
	fail    error
	removed chan struct{}
}

type contents struct {
	mappings   map[rules.Key]mapping
	admissions map[place]admission
	members    map[rules.MemberID]rules.Member
	rest       rules.State // the parts of the state that do not expire
}

type mapping struct {
	rules.Mapping
	expires time.Time
}

type admission struct {
	rules.Admission
	expires time.Time
}

// New returns a kernel without a table.
func New(o rules.Options) *Fake { return &Fake{options: o, removed: make(chan struct{}, 1)} }

// Reopen makes f behave as if another agent with other options had opened it.
func (f *Fake) Reopen(o rules.Options) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options = o
}

// Load implements rules.Kernel.
func (f *Fake) Load() (rules.State, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil || !f.present {
		return rules.State{}, false, f.fail
	}
	s := f.table.state()
	if f.written.InBand != f.options.InBand { // another set
		s.Admissions = slices.DeleteFunc(s.Admissions, func(a rules.Admission) bool { return a.Kind == wire.InBand })
	}
	if f.options.Converter == 0 {
		s.Admissions = slices.DeleteFunc(s.Admissions, func(a rules.Admission) bool { return a.Kind == wire.Converter })
	}
	return s, f.written == f.options, nil
}

func (c *contents) state() rules.State {
	s := c.rest
	s.TunnelInterfaces, s.Forbidden = slices.Clone(s.TunnelInterfaces), slices.Clone(s.Forbidden)
	s.Stopped = slices.Clone(s.Stopped)
	for _, e := range c.mappings {
		if left := time.Until(e.expires); left > 0 {
			m := e.Mapping
			m.Left = left
			s.Mappings = append(s.Mappings, m)
		}
	}
	for _, e := range c.admissions {
		if left := time.Until(e.expires); left > 0 {
			a := e.Admission
			a.Left = left
			s.Admissions = append(s.Admissions, a)
		}
	}
	slices.SortFunc(s.Mappings, func(a, b rules.Mapping) int {
		return cmp.Or(a.Client.Compare(b.Client), cmp.Compare(a.Port, b.Port))
	})
	slices.SortFunc(s.Admissions, func(a, b rules.Admission) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Member, b.Member))
	})
	for _, id := range slices.Sorted(maps.Keys(c.members)) {
		s.Members = append(s.Members, c.members[id])
	}
	return s
}

// Install implements rules.Kernel.
func (f *Fake) Install(s rules.State) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	f.present, f.written = true, f.options
	f.table = contents{
		mappings: make(map[rules.Key]mapping), admissions: make(map[place]admission), members: make(map[rules.MemberID]rules.Member),
		rest: rules.State{
			TunnelInterfaces: slices.Sorted(slices.Values(s.TunnelInterfaces)), Forbidden: slices.Clone(s.Forbidden),
			ForbiddenPorts: slices.Sorted(slices.Values(s.ForbiddenPorts)),
			Guarded4:       slices.Clone(s.Guarded4), Guarded6: slices.Clone(s.Guarded6),
			Closed: s.Closed, Used: s.Used, Stopped: slices.Sorted(slices.Values(s.Stopped)),
		},
	}
	for _, m := range s.Mappings {
		f.table.putMapping(m)
	}
	for _, a := range s.Admissions {
		f.putAdmission(a)
	}
	for _, m := range s.Members {
		f.table.members[m.ID] = m
	}
	return nil
}

func (c *contents) putMapping(m rules.Mapping) {
	c.mappings[m.Key()] = mapping{m, time.Now().Add(m.Left)}
}

func (f *Fake) putAdmission(a rules.Admission) {
	f.table.admissions[f.place(a)] = admission{a, time.Now().Add(a.Left)}
}

// place is the set that holds an admission, and the admission's key in it.
type place struct {
	inBand bool
	addr   string
	member rules.MemberID // where it is part of the key
}

func (f *Fake) place(a rules.Admission) place {
	p := place{inBand: a.Kind == wire.InBand, addr: a.Addr.String()}
	if p.inBand && f.options.InBand == rules.InBandAuthenticated {
		p.member = a.Member
	}
	return p
}

// Commit implements rules.Kernel.
func (f *Fake) Commit(ch rules.Change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails(); err != nil {
		return err
	}
	now := time.Now()
	for _, m := range ch.Add {
		if e, there := f.table.mappings[m.Key()]; there && e.expires.After(now) {
			return fmt.Errorf("commit: add %v: %w", m.Key(), unix.EEXIST)
		}
	}
	for _, m := range slices.Concat(ch.Renew, ch.Remove) {
		e, there := f.table.mappings[m.Key()]
		if there && e.expires.After(now) && (e.Server != m.Server || e.Member != m.Member) {
			return fmt.Errorf("commit: renew or remove %v: %w", m.Key(), unix.EEXIST)
		}
	}
	revoked := make(map[place]bool)
	for i, a := range slices.Concat(ch.Revoke, ch.Admit) {
		p := f.place(a)
		e, there := f.table.admissions[p]
		if there && !revoked[p] && e.expires.After(now) && (e.Member != a.Member || e.Kind != a.Kind) {
			return fmt.Errorf("commit: admit or revoke %v: %w", a.Addr, unix.EEXIST)
		}
		revoked[p] = revoked[p] || i < len(ch.Revoke)
	}
	f.commits++
	for _, m := range ch.Remove {
		delete(f.table.mappings, m.Key())
	}
	for _, m := range slices.Concat(ch.Renew, ch.Add) {
		f.table.putMapping(m)
	}
	for _, a := range ch.Revoke {
		delete(f.table.admissions, f.place(a))
	}
	for _, a := range ch.Admit {
		f.putAdmission(a)
	}
	for _, m := range ch.Members {
		f.table.members[m.ID] = m
	}
	return nil
}

// fails returns the error of a change to the table, or nil.
func (f *Fake) fails() error {
	if f.fail == nil && !f.present {
		return fmt.Errorf("commit: %w", unix.ENOENT)
	}
	return f.fail
}

// SetForbidden implements rules.Kernel.
func (f *Fake) SetForbidden(ranges []egress.Range) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails(); err != nil {
		return err
	}
	f.table.rest.Forbidden = slices.Clone(ranges)
	return nil
}

// SetTunnelInterfaces implements rules.Kernel.
func (f *Fake) SetTunnelInterfaces(names []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails(); err != nil {
		return err
	}
	f.table.rest.TunnelInterfaces = slices.Sorted(slices.Values(names))
	return nil
}

// SetClosed implements rules.Kernel.
func (f *Fake) SetClosed(closed bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails(); err != nil {
		return err
	}
	f.table.rest.Closed = closed
	return nil
}

// SetStopped implements rules.Kernel.
func (f *Fake) SetStopped(members []rules.MemberID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails(); err != nil {
		return err
	}
	f.table.rest.Stopped = slices.Sorted(slices.Values(members))
	return nil
}

// SetUsed implements rules.Kernel.
func (f *Fake) SetUsed(used uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails(); err != nil {
		return err
	}
	f.table.rest.Used = used
	return nil
}

// Used implements rules.Kernel.
func (f *Fake) Used() (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.table.rest.Used, f.fails()
}

// Closed reports whether new connections are rejected.
func (f *Fake) Closed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.present && f.table.rest.Closed
}

// Stopped returns the members that may open no connection.
func (f *Fake) Stopped() []rules.MemberID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.table.rest.Stopped)
}

// Forward uses up some of the quota, as members' packets do.
func (f *Fake) Forward(bytes uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table.rest.Used = min(f.table.rest.Used+bytes, f.written.Quota)
}

// Present implements rules.Kernel.
func (f *Fake) Present() (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.present, f.fail
}

// Removed implements rules.Kernel.
func (f *Fake) Removed() <-chan struct{} { return f.removed }

// Close implements rules.Kernel.
func (f *Fake) Close() error { return nil }

// Flush removes the table, as a reload of the host's firewall does.
func (f *Fake) Flush() {
	f.FlushUnnoticed()
	select {
	case f.removed <- struct{}{}:
	default:
	}
}

// FlushUnnoticed removes the table like Flush, but the kernel's event about it is lost.
func (f *Fake) FlushUnnoticed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.present = false
}

// Put writes a mapping as another program would, without the agent's knowledge.
func (f *Fake) Put(m rules.Mapping) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table.putMapping(m)
}

// Fail makes all further calls fail with err; nil ends that.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// Commits returns the number of transactions that changed mappings and admissions.
func (f *Fake) Commits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.commits
}

// String returns the table as nft would list it; empty if there is none.
func (f *Fake) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.present {
		return ""
	}
	return rules.Render(f.written, f.table.state())
}
