package relay

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/handshakes"
)

// This file learns from the handshakes of this host's connections which servers speak no MPTCP, in the mode in which that
// decides what is converted, and while there is an agent.

// overhear makes x learn from handshakes, if u is of that mode.
func (r *relay) overhear(x *user, u Use) {
	if u.Mode != choice.Auto {
		r.deafen()
		return
	}
	exclude := handshakes.Exclude{Networks: u.Exclude, Ports: u.ExcludePorts}
	var err error
	if t := x.handshakes(); t != nil {
		err = t.Exclude(exclude)
	} else if t, err = handshakes.Open(exclude); err == nil {
		x.setHandshakes(t)
	}
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != r.said[heardName] {
		r.log.Error("the relay learns from its own connections only which servers speak no MPTCP", "err", err)
	}
	r.said[heardName] = problem
}

// heardName is the key of relay.said.
const heardName = "handshakes"

// deafen stops learning from handshakes, and removes what was made for it.
func (r *relay) deafen() {
	if r.user == nil {
		return
	}
	if t := r.user.handshakes(); t != nil {
		r.user.learnAll(t) // for the next agent
		r.user.setHandshakes(nil)
		if err := t.Close(); err != nil {
			r.log.Warn("rules that watch handshakes may be left", "err", err)
		}
	}
}

func (x *user) handshakes() *handshakes.Table {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.heard
}

func (x *user) setHandshakes(t *handshakes.Table) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.heard = t
}

// plainSince implements client.Config.Heard.
func (x *user) plainSince(server netip.AddrPort) (at time.Time, ok bool) {
	t := x.handshakes()
	if t == nil {
		return time.Time{}, false
	}
	at, ok, err := t.Plain(server)
	return at, ok && err == nil // without an answer, the server counts as unknown
}

// table implements capture.Want.Table. Captured programs do not ask about each server, so all are learned first.
func (x *user) table() choice.Table {
	if t := x.handshakes(); t != nil {
		x.learnAll(t)
	}
	return x.client.Table()
}

// learnAll takes over what handshakes have shown.
func (x *user) learnAll(t *handshakes.Table) {
	all, err := t.All()
	if err != nil {
		return // the next time
	}
	x.client.Update(func(c *choice.Choice) {
		for server, at := range all {
			c.Learned(server, false, at)
		}
	})
}
