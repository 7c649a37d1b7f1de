package membership

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// State describes this host's membership.
type State struct {
	Self      collective.Member
	Directory directory.State
	Bus       bus.State // Since is zero before the first attempt
	Renewal   Renewal
	Record    Record
	Chosen    []string
	// Word is the coordinators' last announcement of which waypoints cannot be reached; zero: none.
	Word enrol.Reachability
	// Trouble is the first problem that no other field has.
	Trouble error
}

// Renewal describes the certificate's renewal.
type Renewal struct {
	Next     time.Time // when a new one is requested
	Last     time.Time // the last success; zero: none since the start
	Failures int       // in a row
	Err      error     // why the last try failed
	Expelled string    // why this host was expelled
}

// Record describes this host's record.
type Record struct {
	Verified *directory.Verified // in the directory; nil: none
	Err      error               // why the last try to publish failed
	Withheld []netip.Addr        // addresses that are not published, as they are not known to be this host's
	Removed  string              // why the coordinators removed it
	Reached  *bool               // by other members, as announced by the coordinators; nil: not known
	Tried    *enrol.Tried        // result of other members' tries; nil: not known
}

// State returns the current state. It waits for the loop, which never blocks.
func (m *Membership) State(ctx context.Context) (State, error) {
	return call(ctx, m, m.state)
}

func (m *Membership) state() State {
	id, r := m.config.Identity, &m.renewing
	self := id.Self()
	link := m.link.state
	if line := m.line.Load(); line != nil {
		link.Heard = line.State().Heard
	}
	s := State{
		Self: self, Directory: m.keeper.State(), Bus: link, Word: m.word, Chosen: m.choosing.names(), Trouble: m.trouble(),
		Renewal: Renewal{Next: r.at(self, id.Usable() == nil), Last: r.renewed, Failures: r.failures, Err: r.err, Expelled: r.expelled},
		Record:  Record{Verified: m.own(), Err: m.publish.err, Withheld: slices.Clone(m.publish.withheld.addresses), Removed: m.removed, Reached: Reached(m.word, self.Name), Tried: m.tried},
	}
	return s
}

// trouble returns the first problem that no other field of State has.
func (m *Membership) trouble() error {
	return cmp.Or(m.fileErr, m.link.err, m.trust.err, m.fetch.err)
}
