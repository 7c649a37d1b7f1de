package path

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// Reconfigured changes the operator's settings. The policy applies to existing connections as well, the ports and
// Exclude only to later ones.
type Reconfigured struct {
	Policy                            policy.Policy
	TLSPorts, BulkPorts, MessagePorts []uint16
	Exclude                           []netip.Prefix
}

func (Reconfigured) event() {}

func (m *Manager) reconfigured(ev Reconfigured, now time.Time) {
	lowers := lowers(m.cfg.Policy, ev.Policy)
	m.cfg.Policy, m.cfg.Exclude = ev.Policy, ev.Exclude
	m.cfg.TLSPorts, m.cfg.BulkPorts, m.cfg.MessagePorts = ev.TLSPorts, ev.BulkPorts, ev.MessagePorts
	m.rules.setDefault(ev.Policy)
	for _, c := range m.conns.all() {
		c.exceeds = c.exceeds || lowers && c.rule.byDefault
		m.step(m.turn(c, now))
	}
}

// lowers reports whether connections have fewer subflows by a new policy than by the one before.
func lowers(before, after policy.Policy) bool {
	b, isDetour := before.(policy.Detours)
	a, stays := after.(policy.Detours)
	return isDetour && stays && a.Subflows < b.Subflows
}
