package membership

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// publishing is what this host says of itself, as the loop sees it.
type publishing struct {
	publication
	offer  *Offer // nil: the agent has not said yet
	asking bool
	err    error // why the last try failed
}

// publishDue sends this host's record to the coordinators when the directory should have another.
func (m *Membership) publishDue(ctx context.Context, now time.Time) time.Time {
	p, id := &m.publish, m.config.Identity
	if p.asking || p.offer == nil || !m.connected() || id.Usable() != nil {
		return time.Time{}
	}
	self, has := id.Self(), m.own()
	r := p.offer.record(self, has, now)
	if at := p.at(r, self, has, now); now.Before(at) {
		return at
	}
	p.asking = true
	m.begin(ctx, func() func(time.Time) {
		err := m.sendRecord(ctx, r)
		return func(now time.Time) {
			p.asking, p.err = false, err
			if err != nil {
				p.failed(now, rand.Float64())
				m.log.Warn("membership: this host's record is not published, trying again", "err", err, "next", p.notUntil)
				return
			}
			p.succeeded(r, self, has, now)
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

func (m *Membership) sendRecord(ctx context.Context, r directory.Record) error {
	signed, err := directory.Sign(r, m.config.Identity.Chain(), m.config.Identity.Sign)
	if err != nil {
		return err
	}
	data, err := signed.Encode()
	if err != nil {
		return err
	}
	_, err = m.ask(ctx, enrol.TopicRecord, data)
	return err
}
