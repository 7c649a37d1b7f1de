package history

import (
	"maps"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// Left has the state of living transfers at an agent's end. With it, the next agent's history of them has no gap. It names no
// destination.
type Left struct {
	At        time.Time      `json:"at"` // of the last state
	Transfers []leftTransfer `json:"transfers"`
}

type leftTransfer struct {
	Token string              `json:"token"`
	Seen  map[uint16]counters `json:"seen"` // by the subflow's local port
	// Rates in bytes a second; 0: not known.
	Direct float64 `json:"direct"`
	Total  float64 `json:"total"`
	Alone  float64 `json:"alone"`
}

// Leave returns what the next agent must know. It is called at the end, after Settle.
func (o *Observer) Leave() Left {
	l := Left{At: o.last}
	for k, t := range o.conns {
		if !t.at.Equal(o.last) {
			continue
		}
		x := leftTransfer{Token: k.token, Seen: make(map[uint16]counters, len(t.seen)), Direct: t.direct, Total: t.total, Alone: t.alone}
		for ends, c := range t.seen {
			x.Seen[ends.local.Port()] = c
		}
		l.Transfers = append(l.Transfers, x)
	}
	return l
}

// Resume has an Observer that has seen nothing go on where another one ended.
func (o *Observer) Resume(l Left) {
	o.last, o.left = l.At, make(map[string]leftTransfer, len(l.Transfers))
	for _, t := range l.Transfers {
		o.left[t.Token] = t
	}
}

// resumed returns a connection's transfer as the agent before left it.
func (o *Observer) resumed(c *api.Connection) *transfer {
	l, ok := o.left[c.Token]
	if !ok {
		return &transfer{}
	}
	return &transfer{at: o.last, left: l.Seen, uncounted: maps.Clone(l.Seen), direct: l.Direct, total: l.Total, alone: l.Alone}
}

// catchUp adds what subflows carried since the agent before looked last, as soon as their path is known: the new agent's counters lack it.
func (o *Observer) catchUp(t *transfer, c *api.Connection) {
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
		})
	}
}
