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

// publishing is the loop's state of this host's record.
type publishing struct {
	publication
	offer    *Offer // nil: the agent has not set it yet
	measured []directory.Measurement
	asking   bool
	err      error // why the last try failed
	withheld withheld
	// outdated is set after a new certificate was requested, because the directory has a record with a later one. That is
	// done once: two hosts with copies of the same files would otherwise do it in turn for ever.
	outdated bool
}

// withheld has addresses that coordinators do not take yet, because they are not known to be this host's own. The record is
// published without them. Now and then they are offered again.
type withheld struct {
	addresses []netip.Addr
	until     time.Time
	times     int // in a row
}

const (
	firstWithheld = 5 * time.Second // by then coordinators have had them tried
	lastWithheld  = 15 * time.Minute
)

// refused records the addresses that coordinators do not take, if any.
func (w *withheld) refused(addresses []netip.Addr, now time.Time) {
	if len(addresses) == 0 {
		return
	}
	w.until = now.Add(min(firstWithheld<<min(w.times, 10), lastWithheld))
	w.addresses = addresses
	w.times++
}

// without returns an offer without the withheld addresses.
func (w *withheld) without(o Offer, now time.Time) Offer {
	if now.Before(w.until) {
		o.Addresses = slices.DeleteFunc(slices.Clone(o.Addresses), func(a netip.Addr) bool { return slices.Contains(w.addresses, a) })
	}
	return o
}

// taken records the addresses that the directory has.
func (w *withheld) taken(r directory.Record) {
	w.addresses = slices.DeleteFunc(w.addresses, func(a netip.Addr) bool { return slices.Contains(r.Addresses, a) })
	if len(w.addresses) == 0 {
		*w = withheld{}
	}
}

// publishDue publishes this host's record when it is due.
func (m *Membership) publishDue(ctx context.Context, now time.Time) time.Time {
	p, id := &m.publish, m.config.Identity
	if p.asking || p.offer == nil || !m.connected() || id.Usable() != nil {
		return time.Time{}
	}
	self, has := id.Self(), m.own()
	if !p.outdated && has != nil && has.Holder.Key == self.Key && has.Holder.NotBefore.After(self.NotBefore) {
		// An older copy of this host's files was put back. The directory refuses records with the older certificate.
		p.outdated, m.renewing.needed = true, true
		return now
	}
	r := p.withheld.without(*p.offer, now).record(self, has, now).WithMeasured(p.measured)
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
				m.log.Info("membership: addresses are not published yet, as they are not known to be this host's", "addresses", unshown)
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

// own returns this host's record in the directory, or nil.
func (m *Membership) own() (v *directory.Verified) {
	m.keeper.View(func(d *directory.Directory) { v, _ = d.Get(m.config.Identity.Name()) })
	return v
}

// sendRecord publishes a record. It returns the addresses because of which it was not taken, if any.
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
