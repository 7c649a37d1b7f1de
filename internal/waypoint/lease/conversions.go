package lease

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// conversion lets the converter open connections for a member. There is at most one for each member. It does not end
// with its session, because the member's cookie does not either.
type conversion struct {
	member  *Member
	client  netip.Addr           // of the newest grant; invalid: an earlier agent granted it
	by      *attribution.Session // of the newest grant
	expires time.Time
}

func (c *conversion) rule(now time.Time) rules.Admission {
	return rules.Admission{Kind: wire.Converter, Member: c.member.ID, Left: c.expires.Sub(now)}
}

func (c *conversion) entry(event attribution.Event, now time.Time, lease time.Duration) attribution.Entry {
	return attribution.Entry{Time: now, Event: event, By: c.by, Kind: wire.Converter.String(), Member: c.member.Name,
		Serial: c.member.Serial, Client: c.client, LeaseSeconds: lease.Seconds()}
}

// AdmitConverter lets the converter open connections for a member, and returns the mark of their sockets, or refuses.
func (l *Leases) AdmitConverter(r Request, under Conditions) (*Admitting, uint32, *wire.Refusal) {
	m := l.members.get(r.Name, r.Serial)
	if m == nil {
		return nil, 0, tooManyMembers(r.ID)
	}
	if refusal := cmp.Or(under.anywhere(r), under.closed(r)); refusal != nil {
		return nil, 0, refusal
	}
	before := l.conversions[m.ID]
	granted := &conversion{member: m, client: r.Client, by: l.sessions.live[r.Session].by, expires: under.Now.Add(l.terms.Lifetime)}
	a := &Admitting{member: m}
	if before == nil {
		a.entries = append(a.entries, granted.entry(attribution.AdmissionGranted, under.Now, l.terms.Lifetime))
	}
	l.conversions[m.ID] = granted
	a.admit(granted.rule(under.Now))
	a.undo = func() Ending {
		if before == nil {
			delete(l.conversions, m.ID)
		} else {
			l.conversions[m.ID] = before
		}
		return Ending{}
	}
	return a, l.terms.Marks.Mark(m.ID, wire.Converter), nil
}

func (l *Leases) endConversions(e *Ending, now time.Time, which func(*conversion) bool) {
	for id, c := range l.conversions {
		if which(c) {
			delete(l.conversions, id)
			l.ports.endOf(c.member)
			e.Change.Revoke = append(e.Change.Revoke, c.rule(now))
			e.Entries = append(e.Entries, c.entry(attribution.AdmissionEnded, now, 0))
		}
	}
}
