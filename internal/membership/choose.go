package membership

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// chooseEvery is the least time between two choices: the directory may change often.
const chooseEvery = time.Second

// choosing is the loop's state of the choice of waypoints.
type choosing struct {
	*chooser
	at     time.Time // when to choose again; zero: no need
	last   time.Time
	choice []Waypoint // as given to the agent
}

// soon has waypoints chosen again, but not too often.
func (c *choosing) soon(now time.Time) {
	at := later(now, c.last.Add(chooseEvery))
	if c.at.IsZero() || at.Before(c.at) {
		c.at = at
	}
}

// chooseDue chooses waypoints, and gives them to the agent if they have changed.
func (m *Membership) chooseDue(_ context.Context, now time.Time) time.Time {
	c := &m.choosing
	if c.at.IsZero() || now.Before(c.at) {
		return c.at
	}
	var list []*directory.Verified
	own := m.config.Own()
	m.keeper.View(func(d *directory.Directory) {
		list, c.at = c.choose(func(yield func(*directory.Verified) bool) {
			for v := range d.All() {
				if len(Usable(v, own)) > 0 && !yield(v) {
					return
				}
			}
		}, now)
	})
	c.last = now
	choice := make([]Waypoint, len(list))
	for i, v := range list {
		choice[i] = Waypoint{Name: v.Record.Name, Addresses: Usable(v, own), Port: v.Record.Port, Punch: v.Record.Punch}
	}
	if !slices.EqualFunc(choice, c.choice, Waypoint.equal) {
		c.choice = choice
		m.log.Info("membership: waypoints are chosen", "waypoints", c.names())
		m.config.Choice(choice)
	}
	return c.at
}

// Usable returns the addresses of a record to which this host may send. It leaves out private addresses of other networks,
// because they belong to other hosts here.
func Usable(v *directory.Verified, own []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(v.Record.Addresses), func(a netip.Addr) bool { return !enrol.Shares(own, a) })
}

func (w Waypoint) equal(o Waypoint) bool {
	return w.Name == o.Name && w.Port == o.Port && w.Punch == o.Punch && slices.Equal(w.Addresses, o.Addresses)
}
