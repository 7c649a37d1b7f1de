package coordinator

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
)

// Member is what the coordinator knows of one.
type Member struct {
	Name     string               `json:"name"`
	Key      collective.PublicKey `json:"-"`
	Subnet   netip.Prefix         `json:"subnet,omitzero"`
	Joined   time.Time            `json:"joined"`
	Until    time.Time            `json:"until"` // no certificate of its lasts longer
	Expelled *Expelled            `json:"expelled,omitempty"`
	Record   *directory.Record    `json:"record,omitempty"` // nil: it has told nothing of itself, or that is over
	Reach    *Reach               `json:"reach,omitempty"`  // nil: it is no waypoint, or nobody has tried yet
	// Enforces says whether a waypoint has confirmed that it refuses all who are expelled; nil: it has said nothing
	// since this coordinator's start.
	Enforces *bool `json:"enforces,omitempty"`
}

// Expelled is when and why a member was, and whether everybody was told.
type Expelled struct {
	At   time.Time `json:"at"`
	Why  string    `json:"why"`
	Told bool      `json:"told"`
}

// Members lists all members and those expelled, by name.
func (c *Coordinator) Members() []Member {
	c.enrolling.Lock()
	all := slices.Collect(maps.Values(c.register.members)) // what they point to never changes
	c.enrolling.Unlock()
	slices.SortFunc(all, func(a, b *member) int { return strings.Compare(a.Name, b.Name) })
	out := make([]Member, 0, len(all))
	for _, m := range all {
		one := Member{Name: m.Name, Key: collective.PublicKey(m.Key), Subnet: m.Subnet, Joined: m.Joined, Until: m.Until}
		if x := m.Expelled; x != nil {
			one.Expelled = &Expelled{At: x.At, Why: x.Why, Told: x.Done}
		}
		if r, known := c.reach.of(m.Name); known {
			one.Reach = &r
		}
		if hash, said := c.enforced.by(m.Name); said && m.Expelled == nil {
			now := hash == c.trust.Load().Hash
			one.Enforces = &now
		}
		out = append(out, one)
	}
	if gate := c.gate.Load(); gate != nil {
		gate.view(func(d *directory.Directory) {
			for i := range out {
				if v, there := d.Get(out[i].Name); there {
					out[i].Record = &v.Record
				}
			}
		})
	}
	return out
}

// Status is how a coordinator is, for a person and for health checks.
type Status struct {
	Collective string    `json:"collective"`
	Authority  string    `json:"authority"`       // what signs: a signer's name, or the collective's for a root
	Until      time.Time `json:"authority-until"` // nothing it signs lasts longer
	Since      time.Time `json:"since"`

	Listening string `json:"listening,omitempty"` // for who joins; empty: it does not run
	Bus       string `json:"bus,omitempty"`       // of the embedded bus; empty: the cluster is external
	// Connected is this coordinator's own connection to the bus; nil: it does not run.
	Connected *bus.State `json:"-"`
	Counts    bus.Counts `json:"counts"`
	Floods    uint64     `json:"floods"`

	Members     int      `json:"members"`
	Expelled    int      `json:"expelled"`
	Untold      []string `json:"untold,omitempty"` // expelled, and not everybody knows it yet
	Invitations int      `json:"invitations"`      // that are open

	// Directory is nil while its store cannot be had.
	Directory *DirectoryStatus `json:"directory,omitempty"`
	// Problems are what was damaged when the coordinator was opened, and expulsions that cannot be enforced.
	Problems []string `json:"problems,omitempty"`
}

// DirectoryStatus is how the directory's store is.
type DirectoryStatus struct {
	Members     int                         `json:"members"`
	Bytes       int                         `json:"bytes"`
	Epoch       uint64                      `json:"epoch"`
	Revision    uint64                      `json:"revision"`
	Unreachable []string                    `json:"unreachable,omitempty"`
	Refused     map[directory.Reason]uint64 `json:"refused,omitempty"`
}

// Status is how the coordinator is now.
func (c *Coordinator) Status() Status {
	now := c.now()
	c.enrolling.Lock()
	s := Status{
		Collective: c.ca.Name(), Authority: c.ca.Subject(), Until: c.ca.NotAfter(), Since: c.began,
		Floods: c.floods.Load(), Untold: c.register.unfinished(), Problems: slices.Clone(c.problems),
	}
	unrevoked := c.register.unrevoked(now)
	for _, name := range slices.Sorted(maps.Keys(unrevoked)) {
		s.Problems = append(s.Problems, name+" is expelled, "+c.notRevoked(name, unrevoked[name]).Error())
	}
	for _, m := range c.register.members {
		if m.Expelled != nil {
			s.Expelled++
		} else {
			s.Members++
		}
	}
	for _, t := range c.register.tokens {
		if t.Member == "" && !t.Void && !now.After(t.Expires) {
			s.Invitations++
		}
	}
	c.enrolling.Unlock()
	if full := c.roomProblem(); full != "" {
		s.Problems = append(s.Problems, full)
	}
	if at := c.serving.Load(); at != nil {
		s.Listening, s.Bus = at.front, at.bus
	}
	if e := c.engine.Load(); e != nil {
		state := e.link.State()
		s.Connected, s.Counts = &state, e.link.Counts()
		if e.server != nil {
			s.Problems = append(s.Problems, e.server.Damage()...)
		}
	}
	if gate := c.gate.Load(); gate != nil {
		d := &DirectoryStatus{Unreachable: c.reach.unreachable()}
		gate.view(func(dir *directory.Directory) {
			d.Members, d.Bytes, d.Refused = dir.Len(), dir.Bytes(), dir.Refused()
			d.Epoch, d.Revision = dir.Position()
		})
		s.Directory = d
	}
	return s
}
