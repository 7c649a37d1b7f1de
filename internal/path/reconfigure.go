package path

import (
	"net/netip"
	"time"
)

// Reconfigured changes the operator's settings. Existing connections follow the policy; the ports and Exclude decide
// about later connections.
type Reconfigured struct {
	Policy                            Policy
	TLSPorts, BulkPorts, MessagePorts []uint16
	Exclude                           []netip.Prefix
}

func (Reconfigured) event() {}

func (m *Manager) reconfigured(ev Reconfigured, now time.Time) {
	m.cfg.Policy, m.cfg.Exclude = ev.Policy, ev.Exclude
	m.cfg.TLSPorts, m.cfg.BulkPorts, m.cfg.MessagePorts = ev.TLSPorts, ev.BulkPorts, ev.MessagePorts
	m.rules.setDefault(ev.Policy)
	for _, c := range m.conns.all() {
		m.step(m.turn(c, now))
	}
}
