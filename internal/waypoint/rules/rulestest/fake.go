// Package rulestest is a waypoint's table without a kernel, for tests. Its clock is time.Now, so
// that testing/synctest can move it.
package rulestest

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Fake implements rules.Kernel in memory, with the kernel's errors.
type Fake struct {
	mu       sync.Mutex
	limits   rules.Limits
	present  bool
	written  rules.Limits // those of the table that is there
	mappings map[rules.Key]element
	members  map[rules.MemberID]rules.Member
	guarded4 []string
	guarded6 []string

	commits int
	fail    error
}

type element struct {
	rules.Mapping
	expires time.Time
}

// New makes a kernel without a table.
func New(l rules.Limits) *Fake { return &Fake{limits: l} }

// Reopen is what another agent with other limits finds.
func (f *Fake) Reopen(l rules.Limits) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limits = l
}

// Load implements rules.Kernel.
func (f *Fake) Load() (rules.State, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return rules.State{}, false, f.fail
	}
	return f.state(), f.present && f.written == f.limits, nil
}

func (f *Fake) state() rules.State {
	var s rules.State
	if !f.present {
		return s
	}
	for _, e := range f.mappings {
		if left := time.Until(e.expires); left > 0 {
			m := e.Mapping
			m.Left = left
			s.Mappings = append(s.Mappings, m)
		}
	}
	slices.SortFunc(s.Mappings, func(a, b rules.Mapping) int {
		if c := a.Client.Compare(b.Client); c != 0 {
			return c
		}
		return int(a.Port) - int(b.Port)
	})
	for _, id := range slices.Sorted(maps.Keys(f.members)) {
		s.Members = append(s.Members, f.members[id])
	}
	s.Guarded4, s.Guarded6 = slices.Clone(f.guarded4), slices.Clone(f.guarded6)
	return s
}

// Install implements rules.Kernel.
func (f *Fake) Install(s rules.State) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	f.present, f.written = true, f.limits
	f.mappings = make(map[rules.Key]element)
	f.members = make(map[rules.MemberID]rules.Member)
	f.guarded4, f.guarded6 = slices.Clone(s.Guarded4), slices.Clone(s.Guarded6)
	for _, m := range s.Mappings {
		f.put(m)
	}
	for _, m := range s.Members {
		f.members[m.ID] = m
	}
	return nil
}

func (f *Fake) put(m rules.Mapping) {
	f.mappings[m.Key()] = element{m, time.Now().Add(m.Left)}
}

// live is the element that lookups find.
func (f *Fake) live(k rules.Key) (element, bool) {
	e, ok := f.mappings[k]
	return e, ok && e.expires.After(time.Now())
}

// Commit implements rules.Kernel.
func (f *Fake) Commit(ch rules.Change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	if !f.present {
		return fmt.Errorf("commit: %w", unix.ENOENT)
	}
	for _, m := range ch.Add {
		if _, there := f.live(m.Key()); there {
			return fmt.Errorf("commit: add %v: %w", m.Key(), unix.EEXIST)
		}
	}
	for _, m := range slices.Concat(ch.Renew, ch.Remove) {
		if e, there := f.live(m.Key()); there && (e.Server != m.Server || e.Member != m.Member) {
			return fmt.Errorf("commit: renew or remove %v: %w", m.Key(), unix.EEXIST)
		}
	}
	f.commits++
	for _, m := range ch.Remove {
		delete(f.mappings, m.Key())
	}
	for _, m := range slices.Concat(ch.Renew, ch.Add) {
		f.put(m)
	}
	for _, m := range ch.Members {
		f.members[m.ID] = m
	}
	return nil
}

// Present implements rules.Kernel.
func (f *Fake) Present() (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.present, f.fail
}

// Close implements rules.Kernel.
func (f *Fake) Close() error { return nil }

// Flush removes the table, as a reload of the host's firewall does.
func (f *Fake) Flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.present = false
}

// Put writes a mapping behind the agent's back.
func (f *Fake) Put(m rules.Mapping) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.put(m)
}

// Fail makes everything fail from now on; nil ends that.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// Commits counts the transactions.
func (f *Fake) Commits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.commits
}

// String is the table as nft would list it; empty if there is none.
func (f *Fake) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.present {
		return ""
	}
	return rules.Render(f.written, f.state())
}
