package membership

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/detour-collective/dcol/internal/enrol"
)

// fetchSpread is the time over which members spread their fetches of lists too large for a message. An expulsion must be
// known within five seconds.
const fetchSpread = 2 * time.Second

// trustDue requests roots and lists after each connect.
func (m *Membership) trustDue(ctx context.Context, now time.Time) time.Time {
	if !m.connected() {
		return m.trust.next()
	}
	return m.inquire(ctx, &m.trust, now, func() (func(time.Time), error) {
		answer, err := m.ask(ctx, enrol.TopicTrust, []byte(enrol.HashTrust(m.config.Identity.Trust())))
		if err == nil {
			err = m.receiveTrust(ctx, answer)
		}
		return nil, err
	})
}

// receiveTrust takes roots and lists from a coordinator's message, or has them fetched.
func (m *Membership) receiveTrust(ctx context.Context, data []byte) error {
	msg, err := parse[enrol.TrustMessage](data)
	if err != nil {
		return err
	}
	if msg.Whole() {
		return m.takeTrust(ctx, msg)
	}
	if msg.Hash != "" && msg.Hash != enrol.HashTrust(m.config.Identity.Trust()) {
		m.post(ctx, func(now time.Time) { m.fetch.at = now.Add(rand.N(fetchSpread)) })
	}
	return nil
}

// fetchDue fetches roots and lists over HTTPS.
func (m *Membership) fetchDue(ctx context.Context, now time.Time) time.Time {
	at := m.coordinators()
	return m.inquire(ctx, &m.fetch, now, func() (func(time.Time), error) {
		msg, err := enrol.FetchTrust(ctx, at)
		if err == nil {
			err = m.takeTrust(ctx, *msg)
		}
		return nil, err
	})
}

// takeTrust verifies and takes roots and lists, whoever has sent them.
func (m *Membership) takeTrust(ctx context.Context, msg enrol.TrustMessage) error {
	changed, err := m.config.Identity.TakeTrust([]byte(msg.Roots), []byte(msg.Lists))
	if err != nil {
		return fmt.Errorf("take roots and lists: %w", err)
	}
	if m.config.Trusted != nil {
		m.config.Trusted() // even if they are not new: a coordinator on this host may have taken them
	}
	if changed {
		m.log.Info("membership: new roots or lists are taken")
		m.post(ctx, func(time.Time) { m.keeper.TrustChanged() })
	}
	return nil
}
