package client

import (
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/names"
)

// excludedFor is the time for which connections to an address go directly after a client asked there for an excluded name.
const excludedFor = time.Hour

// overhear looks for an excluded name in the TLS ClientHello with which a connection begins. If there is one, the next
// connections to the server's address go directly. It implements engine.Hearer for openings with an attempt.
func (a *attempt) overhear(b []byte) (more bool) {
	if a.direct || !a.client.excludesNames() {
		return false
	}
	a.said = append(a.said, b...)
	name, more := names.ServerName(a.said)
	if !more {
		a.said = nil
	}
	if name != "" && a.client.ExcludesName(name) {
		now := time.Now()
		a.client.Update(func(c *choice.Choice) { c.Exclude(a.servers[0].Addr(), name, now.Add(excludedFor), now) })
		if a.client.config.Excluded != nil {
			a.client.config.Excluded()
		}
	}
	return more
}

// Hear implements engine.Hearer.
func (o *redirected) Hear(b []byte) (more bool) { return o.attempt.overhear(b) }

// Hear implements engine.Hearer.
func (n *named) Hear(b []byte) (more bool) { return n.attempt.overhear(b) }

// Hear implements engine.Hearer.
func (o *waiting) Hear(b []byte) (more bool) { return o.attempt.overhear(b) }
