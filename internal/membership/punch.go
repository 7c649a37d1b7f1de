package membership

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/detour-collective/dcol/internal/enrol"
)

// Punch has a waypoint send packets with the id to these places, so that its NAT lets in what comes from there. When it
// returns, the coordinator has told the waypoint, but the message may be lost.
func (m *Membership) Punch(ctx context.Context, waypoint string, id [12]byte, at []netip.AddrPort) error {
	data, err := json.Marshal(enrol.Punch{With: waypoint, ID: id, At: at})
	if err == nil {
		_, err = m.ask(ctx, enrol.TopicPunch, data)
	}
	if err != nil {
		return fmt.Errorf("ask the coordinator to have %s open the way: %w", waypoint, err)
	}
	return nil
}

// receivePunch has this host send packets to another member.
func (m *Membership) receivePunch(data []byte) error {
	p, err := parse[enrol.Punch](data)
	if err != nil {
		return err
	}
	if err := p.Check(); err != nil {
		return err
	}
	if m.config.Knock != nil {
		m.config.Knock(p.With, p.ID, p.At)
	}
	return nil
}
