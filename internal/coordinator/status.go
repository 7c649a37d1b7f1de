package coordinator

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/coordinator/reach"
)

// Member describes one member.
type Member struct {
	Name     string               `json:"name"`
	Key      collective.PublicKey `json:"-"`
	Subnet   netip.Prefix         `json:"subnet,omitzero"`
	Joined   time.Time            `json:"joined"`
	Until    time.Time            `json:"until"` // none of its certificates lasts longer
	Expelled *Expelled            `json:"expelled,omitempty"`
	Record   *directory.Record    `json:"record,omitempty"` // nil: it has published none, or that has ended
	Reach    *reach.Verdict       `json:"reach,omitempty"`  // nil: it is not a waypoint, or was not tried yet
	// Enforces reports whether a waypoint has confirmed that it refuses all expelled members; nil: it has confirmed
	// nothing since this coordinator's start.
	Enforces *bool `json:"enforces,omitempty"`
}

// Expelled describes an expulsion.
type Expelled struct {
	At   time.Time `json:"at"`
	Why  string    `json:"why"`
	Told bool      `json:"told"` // all members were told
}

// Members returns all members, including expelled ones but not those that have left, sorted by name.
func (c *Coordinator) Members() []Member {
	all := c.registrar.Members()
	now := c.registrar.Message().Hash
	out := make([]Member, 0, len(all))
	for _, m := range all {
		if m.Expelled != nil && m.Expelled.Left {
			continue
		}
		one := Member{Name: m.Name, Key: m.Key, Subnet: m.Subnet, Joined: m.Joined, Until: m.Until}
		if x := m.Expelled; x != nil {
			one.Expelled = &Expelled{At: x.At, Why: x.Why, Told: x.Done}
		}
		if v, known := c.prober.Of(m.Name); known {
			one.Reach = &v
		}
		if hash, confirmed := c.enforced.by(m.Name); confirmed && m.IsMember() {
			enforces := hash == now
			one.Enforces = &enforces
		}
		out = append(out, one)
	}
	c.records.View(func(d *directory.Directory) {
		for i := range out {
			if v, there := d.Get(out[i].Name); there {
				out[i].Record = &v.Record
			}
		}
	})
	return out
}

// Status describes a coordinator, for people and health checks.
type Status struct {
	Collective string    `json:"collective"`
	Authority  string    `json:"authority"`       // name of the signer; the collective's, if its root signs
	Until      time.Time `json:"authority-until"` // no certificate it signs lasts longer
	Since      time.Time `json:"since"`

	Listening string `json:"listening,omitempty"` // for hosts that join; empty: it does not run
	Bus       string `json:"bus,omitempty"`       // address of the embedded bus; empty: the cluster is external
	// Connected is the state of this coordinator's own connection to the bus; nil: it does not run.
	Connected *bus.State `json:"-"`
	Counts    bus.Counts `json:"counts"`
	Floods    uint64     `json:"floods"`

	Members     int      `json:"members"`
	Expelled    int      `json:"expelled"`
	Untold      []string `json:"untold,omitempty"` // expelled members whose expulsion some members have not been told yet
	Invitations int      `json:"invitations"`      // open ones

	// Directory is nil while the directory's store is not available.
	Directory *DirectoryStatus `json:"directory,omitempty"`
	// Problems lists what was damaged when the coordinator was opened, expulsions that cannot be enforced, and a full
	// disk.
	Problems []string `json:"problems,omitempty"`
}

// DirectoryStatus describes the directory's store.
type DirectoryStatus struct {
	Members     int                         `json:"members"`
	Bytes       int                         `json:"bytes"`
	Epoch       uint64                      `json:"epoch"`
	Revision    uint64                      `json:"revision"`
	Unreachable []string                    `json:"unreachable,omitempty"`
	Refused     map[directory.Reason]uint64 `json:"refused,omitempty"`
}

// Status returns the state of the coordinator.
func (c *Coordinator) Status() Status {
	r := c.registrar.Summary()
	s := Status{
		Collective: r.Collective, Authority: r.Authority, Until: r.Until, Since: c.began, Floods: c.floods.Load(),
		Members: r.Members, Expelled: r.Expelled, Untold: r.Unfinished, Invitations: r.Invitations, Problems: r.Problems,
	}
	if full := c.reserve.problem(); full != "" {
		s.Problems = append(s.Problems, full)
	}
	s.Problems = append(s.Problems, c.bus.Damage()...)
	s.Listening, s.Bus = c.addresses.Bound()
	s.Connected, s.Counts = c.bus.State()
	d := DirectoryStatus{Unreachable: c.prober.Unreachable()}
	if c.records.View(func(dir *directory.Directory) {
		d.Members, d.Bytes, d.Refused = dir.Len(), dir.Bytes(), dir.Refused()
		d.Epoch, d.Revision = dir.Position()
	}) {
		s.Directory = &d
	}
	return s
}
