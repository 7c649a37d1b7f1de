package membership

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// State is how this host stands, for a person.
type State struct {
	Self      collective.Member
	Directory directory.State
	Bus       bus.State // of the zero Since: there was no attempt yet
	Renewal   Renewal
	Record    Record
	Chosen    []string
	// Word is what coordinators last said of who cannot be reached; its zero value: nothing.
	Word enrol.Reachability
	// Trouble is what else is amiss.
	Trouble error
}

// Renewal is how it stands with the certificate.
type Renewal struct {
	Next     time.Time // when a new one is asked for
	Last     time.Time // when that went well; zero: not since the start
	Failures int       // in a row
	Err      error     // why the last try failed
	Expelled string    // why the coordinators want this host no more
}

// Record is how it stands with what this host says of itself.
type Record struct {
	Verified *directory.Verified // in the directory; nil: none
	Err      error               // why the last try to publish one failed
	Withheld []netip.Addr        // addresses that others are not told: nobody has shown that they are this host's
	Removed  string              // why the coordinators took it out
	Reached  *bool               // by other members, as the coordinators say; nil: they say nothing
	Tried    *enrol.Tried        // by other members to reach it, and what came of it; nil: not known
}

// State is how this host stands now. It waits for the loop, which waits for nothing.
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

// trouble is the first of what a person should know and nothing else tells.
func (m *Membership) trouble() error {
	for _, err := range []error{m.fileErr, m.link.err, m.trust.err, m.fetch.err} {
		if err != nil {
			return err
		}
	}
	return nil
}
