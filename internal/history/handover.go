package history

import (
	"maps"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// Left is the state of open transfers when an agent ends. It lets the next agent continue their history without a gap.
// It names no destination.
type Left struct {
	At        time.Time      `json:"at"` // when the last state was observed
	Transfers []leftTransfer `json:"transfers"`
}

type leftTransfer struct {
	Token string              `json:"token"`
	Seen  map[uint16]counters `json:"seen"` // keyed by the subflow's local port
	// Rates are in bytes a second. 0 means not known.
	Direct float64 `json:"direct"`
	Total  float64 `json:"total"`
	Alone  float64 `json:"alone"`
	// AloneAmong is the number of transfers that ran while Alone was measured.
	AloneAmong int `json:"alone_among"`
}

// Leave returns the state for the next agent. The caller must have called Settle.
func (o *Observer) Leave() Left {
	l := Left{At: o.last}
	for k, t := range o.conns {
		if !t.at.Equal(o.last) {
			continue
		}
		x := leftTransfer{Token: k.token, Seen: make(map[uint16]counters, len(t.seen)), Direct: t.direct, Total: t.total, Alone: t.alone, AloneAmong: t.aloneAmong}
		for ends, c := range t.seen {
			x.Seen[ends.local.Port()] = c
		}
		l.Transfers = append(l.Transfers, x)
	}
	return l
}

// Resume makes a new Observer continue where another one ended.
func (o *Observer) Resume(l Left) {
	o.last, o.left = l.At, make(map[string]leftTransfer, len(l.Transfers))
	for _, t := range l.Transfers {
		o.left[t.Token] = t
	}
}

// resumed returns a connection's transfer as the previous agent left it.
func (o *Observer) resumed(c *api.Connection) *transfer {
	l, ok := o.left[c.Token]
	if !ok {
		return &transfer{}
	}
	return &transfer{
		at: o.last, left: l.Seen, uncounted: maps.Clone(l.Seen), direct: l.Direct, total: l.Total, alone: l.Alone, aloneAmong: l.AloneAmong,
	}
}

// catchUp adds what subflows carried since the previous agent last looked. The new agent's counters lack that. A
// subflow is added as soon as its path is known.
func (o *Observer) catchUp(t *transfer, c *api.Connection, now time.Time) {
	for i := range c.Subflows {
		s := &c.Subflows[i]
		was, ok := t.uncounted[s.Local.Port()]
		if !ok || s.Kind == unknownKind {
			continue
		}
		delete(t.uncounted, s.Local.Port())
		o.carry(api.PathUsed{
			Kind: s.Kind, Waypoint: s.Waypoint,
			Received: max(s.BytesReceived, was[inward]) - was[inward], Sent: max(s.BytesSent, was[outward]) - was[outward],
		}, now)
	}
}
