package waypoint

import (
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

// recallSessions finds in the log over which sessions was asked for what an earlier agent left: the
// kernel's table names members only. What the log does not tell is unknown until it is asked for again.
func (w *Waypoint) recallSessions() {
	if w.index.len() == 0 && len(w.passes) == 0 && len(w.tunnels) == 0 {
		return
	}
	sessions, err := attribution.Recall(w.config.Log)
	if err != nil {
		w.log.Warn("the sessions of what an earlier agent granted are not known", "err", err)
		return
	}
	for _, m := range w.index.byKey {
		m.by = sessions[attribution.Grant{Member: w.members.of(m.member).Name, Client: m.key.Client, Port: m.key.Port}]
	}
	for _, list := range w.passes {
		for _, p := range list {
			p.by = sessions[attribution.Grant{Member: p.member.Name, Kind: wire.InBand.String(), Client: p.addr}]
		}
	}
	for addr, t := range w.tunnels {
		t.by = sessions[attribution.Grant{Member: t.member.Name, Kind: t.kind.String(), Client: addr}]
	}
}
