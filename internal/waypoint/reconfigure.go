package waypoint

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// Terms are the parts of a Config that Reconfigure changes.
type Terms struct {
	Allow, Deny []netip.Prefix
	DenyPorts   []uint16
	Hours       []units.Window
	Members     map[string]MemberTerms
}

// Reconfigure changes the servers that members may reach, and the hours. Mappings to servers that are now denied end, with
// their connections. Outside the new hours, open connections continue.
func (w *Waypoint) Reconfigure(t Terms) error {
	policy, err := egress.New(t.Allow, t.Deny, t.DenyPorts)
	if err != nil {
		return err
	}
	var table error
	err = w.ask(func() { table = w.loop.reconfigure(t, policy, time.Now()) })
	if err == nil {
		err = table
	}
	if err != nil {
		return fmt.Errorf("change the waypoint's terms: %w", err)
	}
	return nil
}

func (l *loop) reconfigure(t Terms, policy *egress.Policy, now time.Time) error {
	l.config.Allow, l.config.Deny, l.config.DenyPorts, l.config.Hours = t.Allow, t.Deny, t.DenyPorts, t.Hours
	l.config.Members = t.Members
	l.limited.replace(t.Members)
	l.giver.terms.Hours = t.Hours
	l.giver.check(now)
	l.surroundings.replace(policy)
	ports := l.config.deniedPorts()
	changed := !slices.Equal(ports, l.table.rest.ForbiddenPorts)
	l.table.rest.ForbiddenPorts = ports
	l.surroundingsChanged(now)
	l.checkLimited(now)
	if changed { // ports are part of the rules, not of a set
		return l.table.install()
	}
	return nil
}
