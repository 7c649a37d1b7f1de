package membership

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// publishing is what this host says of itself, as the loop sees it.
type publishing struct {
	publication
	offer    *Offer // nil: the agent has not said yet
	asking   bool
	err      error // why the last try failed
	withheld withheld
	// outdated: a later certificate was asked for because of one in the directory. That is done once, as two hosts
	// with copies of the same files would do it in turn for ever.
	outdated bool
}

// withheld are addresses that coordinators do not take yet, as nobody has shown that they are this host's. The record
// goes without them; now and then it is offered with them again.
type withheld struct {
	addresses []netip.Addr
	until     time.Time
	times     int // in a row
}

const (
	firstWithheld = 5 * time.Second // coordinators have had them tried by then
	lastWithheld  = 15 * time.Minute
)

// refused notes what coordinators do not take; none: they have taken all there was.
func (w *withheld) refused(addresses []netip.Addr, now time.Time) {
	if len(addresses) == 0 {
		return
	}
	w.until = now.Add(min(firstWithheld<<min(w.times, 10), lastWithheld))
	w.addresses = addresses
	w.times++
}

// without is an offer as coordinators will take it now.
func (w *withheld) without(o Offer, now time.Time) Offer {
	if now.Before(w.until) {
		o.Addresses = slices.DeleteFunc(slices.Clone(o.Addresses), func(a netip.Addr) bool { return slices.Contains(w.addresses, a) })
	}
	return o
}

// taken notes which addresses the directory has.
func (w *withheld) taken(r directory.Record) {
	w.addresses = slices.DeleteFunc(w.addresses, func(a netip.Addr) bool { return slices.Contains(r.Addresses, a) })
	if len(w.addresses) == 0 {
		*w = withheld{}
	}
}

// publishDue sends this host's record to the coordinators when the directory should have another.
func (m *Membership) publishDue(ctx context.Context, now time.Time) time.Time {
	p, id := &m.publish, m.config.Identity
	if p.asking || p.offer == nil || !m.connected() || id.Usable() != nil {
		return time.Time{}
	}
	self, has := id.Self(), m.own()
	if !p.outdated && has != nil && has.Holder.Key == self.Key && has.Holder.NotBefore.After(self.NotBefore) {
		// An older copy of our files was put back: no record of ours counts beside that of the later certificate.
		p.outdated, m.renewing.needed = true, true
		return now
	}
	r := p.withheld.without(*p.offer, now).record(self, has, now)
	if at := p.at(r, self, has, now); now.Before(at) {
		if until := p.withheld.until; now.Before(until) {
			at = earlier(at, until)
		}
		return at
	}
	p.asking = true
	m.begin(ctx, func() func(time.Time) {
		unshown, err := m.sendRecord(ctx, r)
		return func(now time.Time) {
			p.asking, p.err = false, err
			if err == nil && len(unshown) > 0 {
				p.withheld.refused(unshown, now)
				m.log.Info("membership: nobody has shown yet that addresses are this host's: others are not told them", "addresses", unshown)
				return
			}
			if err != nil {
				p.failed(now, rand.Float64())
				m.log.Warn("membership: this host's record is not published, trying again", "err", err, "next", p.notUntil)
				return
			}
			p.succeeded(r, self, has, now)
			p.withheld.taken(r)
			m.log.Info("membership: this host's record is published", "addresses", r.Addresses, "port", r.Port, "kinds", r.Kinds)
		}
	})
	return time.Time{}
}

// own is what the directory has of this host; nil: nothing.
func (m *Membership) own() (v *directory.Verified) {
	m.keeper.View(func(d *directory.Directory) { v, _ = d.Get(m.config.Identity.Name()) })
	return v
}

// sendRecord returns the addresses for which coordinators did not take the record; none: it is taken.
func (m *Membership) sendRecord(ctx context.Context, r directory.Record) (unshown []netip.Addr, err error) {
	signed, err := directory.Sign(r, m.config.Identity.Chain(), m.config.Identity.Sign)
	if err != nil {
		return nil, err
	}
	data, err := signed.Encode()
	if err != nil {
		return nil, err
	}
	text, err := m.ask(ctx, enrol.TopicRecord, data)
	if err != nil || len(text) == 0 {
		return nil, err
	}
	answer, err := parse[enrol.RecordAnswer](text)
	return answer.Unshown, err
}
