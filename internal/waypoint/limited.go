package waypoint

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
)

// limited enforces the terms that the operator has set for single members. Allowed servers are checked with each request.
// Outside a member's hours, and when its quota is used up, the kernel resets its new connections (table.stop), as it does
// when the log has no room for them. Bytes are read from conntrack every ten seconds, so a member may exceed its quota for
// that long. The quota of all members together is exact, because the kernel has a rule for it.
type limited struct {
	terms  map[string]MemberTerms
	giver  *giver // its memory has the bytes used
	log    *slog.Logger
	counts map[string]uint64 // bytes at the last count, by member
	ended  map[string]bool   // members whose connections were ended, because their quota is used up
	stands map[string]giving.Standing
	fresh  map[string]bool   // members who got a quota since the last count; for these, the next count is the first
	keys   map[string]string // of members' latest sessions, by name
}

// countEvery is the interval at which members' bytes are counted.
const countEvery = 10 * time.Second

func newLimited(terms map[string]MemberTerms, g *giver, log *slog.Logger) *limited {
	return &limited{terms: terms, giver: g, log: log, counts: make(map[string]uint64), ended: make(map[string]bool),
		stands: make(map[string]giving.Standing), fresh: make(map[string]bool), keys: make(map[string]string)}
}

// session records the key of a member's new session. It reports whether the member's name has another holder than
// before, so that another use of the quota counts.
func (l *limited) session(name, key string, now time.Time) bool {
	l.keys[name] = key
	return l.follow(name, now)
}

// follow makes the use of a name's present holder count. The coordinator gives a name to another host only if the
// operator invites that host by the name. The new host begins with an unused quota. If the former host returns, it
// continues with what it had used.
func (l *limited) follow(name string, now time.Time) bool {
	key, m := l.keys[name], &l.giver.memory
	before := m.Holders[name]
	if key == "" || key == before || l.terms[name].Quota == 0 {
		return false
	}
	if m.Holders == nil {
		m.Holders = make(map[string]string)
	}
	m.Holders[name], l.giver.unsaved = key, true
	if before == "" { // the use was counted by an agent that did not record keys
		return false
	}
	maps.DeleteFunc(m.Former, func(_ string, l giving.Ledger) bool { return l.Counting != giving.MonthOf(now) })
	if m.Former == nil {
		m.Former = make(map[string]giving.Ledger)
	}
	m.Former[before] = m.Members[name]
	if m.Members == nil {
		m.Members = make(map[string]giving.Ledger)
	}
	m.Members[name] = m.Former[key]
	delete(m.Former, key)
	delete(l.ended, name)
	l.log.Info("a member's name has another holder, whose use of the quota counts from now on", "member", name)
	return true
}

// replace replaces all members' terms.
func (l *limited) replace(terms map[string]MemberTerms) {
	for name, t := range terms {
		if t.Quota > 0 && l.terms[name].Quota == 0 {
			l.fresh[name] = true
		}
	}
	l.terms = terms
}

// servers returns the limits on the servers that a member may reach.
func (l *limited) servers(member string) egress.Narrowing { return l.terms[member].Servers }

// of returns a member's own terms, as they are now.
func (l *limited) of(member string) lease.MemberConditions {
	return lease.MemberConditions{Servers: l.servers(member), Giving: l.stands[member]}
}

// counting reports whether a member has a quota.
func (l *limited) counting() bool {
	for _, t := range l.terms {
		if t.Quota > 0 {
			return true
		}
	}
	return false
}

// begin takes bytes, of members' open connections, as counted by an earlier agent.
func (l *limited) begin(bytes map[string]uint64) { l.counts = bytes }

// count adds the bytes since the last count to members' use.
func (l *limited) count(bytes map[string]uint64, now time.Time) {
	for name, t := range l.terms {
		if t.Quota == 0 {
			continue
		}
		l.follow(name, now)
		used := l.giver.memory.Members
		ledger := used[name]
		if ledger.Turn(giving.MonthOf(now)); bytes[name] > l.counts[name] && !l.fresh[name] {
			ledger.Count(ledger.Used() + bytes[name] - l.counts[name])
			l.giver.unsaved = true
		}
		if used == nil {
			used = make(map[string]giving.Ledger)
			l.giver.memory.Members = used
		}
		used[name] = ledger
	}
	l.counts = bytes
	clear(l.fresh)
}

// check returns the members that may open no connection now, and those of them whose open connections are to end.
func (l *limited) check(now time.Time) (closed, spent []string) {
	stands := make(map[string]giving.Standing)
	for _, name := range slices.Sorted(maps.Keys(l.terms)) {
		t, used := l.terms[name], l.used(name, now)
		terms := giving.Terms{Hours: t.Hours, Quota: t.Quota}
		stand := terms.Stand(now, nil, used)
		if before := l.stands[name]; !stand.Equal(before) {
			l.log.Info("what the waypoint gives to a member has changed", "member", name, "gives", !stand.Closed(), "why", stand.Cause, "until", stand.Until)
		}
		stands[name] = stand
		if stand.Closed() {
			closed = append(closed, name)
		}
		switch over := terms.Spent(used); {
		case !over:
			delete(l.ended, name)
		case !l.ended[name]:
			spent = append(spent, name)
		}
	}
	l.stands = stands
	return closed, spent
}

// used returns the bytes that a member with a quota has used in this month.
func (l *limited) used(name string, now time.Time) uint64 {
	if ledger := l.giver.memory.Members[name]; ledger.Counting == giving.MonthOf(now) {
		return ledger.Used()
	}
	return 0
}

// snapshot lists the members with terms of their own by name.
func (l *limited) snapshot(now time.Time) (list []LimitedSnapshot) {
	for _, name := range slices.Sorted(maps.Keys(l.terms)) {
		list = append(list, LimitedSnapshot{Name: name, MemberTerms: l.terms[name], Used: l.used(name, now), Standing: l.stands[name]})
	}
	return list
}

// checkLimited enforces members' own terms, as they are now.
func (l *loop) checkLimited(now time.Time) {
	closed, spent := l.limited.check(now)
	l.table.stop(l.record.Full(), closed)
	for _, name := range spent {
		m := l.leases.Known(name)
		if m == nil {
			continue
		}
		if err := l.connections.endAll(l.config.marks().Of(m.ID)); err != nil {
			l.log.Error("a member's quota is used up, but its connections cannot be ended", "member", name, "err", err)
			continue // tried again
		}
		l.limited.ended[name] = true
	}
}

// bytes returns the bytes of each member's connections, by name. counted has those that netfilter counted.
func (l *loop) bytes(counted map[netstate.Tuple]netstate.Flow) map[string]uint64 {
	bytes := make(map[string]uint64)
	for id, used := range l.connections.usage(counted) {
		bytes[l.leases.Member(id).Name] = used.BytesFromClient + used.BytesToClient
	}
	return bytes
}

// counted lists connections with the bytes that netfilter counted. It may be called from any goroutine.
func (c *connections) counted() (map[netstate.Tuple]netstate.Flow, error) {
	counted := make(map[netstate.Tuple]netstate.Flow)
	err := c.list(func(f netstate.Flow) { counted[f.Origin] = f })
	return counted, err
}

// watchUse counts members' bytes until the waypoint stops. Listing connections takes long if there are many, so the loop
// does not do it.
func (w *Waypoint) watchUse() {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		var needed bool
		if w.ask(func() { needed = w.loop.limited.counting() }) != nil || !needed {
			continue
		}
		counted, err := w.loop.connections.counted()
		if err != nil {
			w.loop.log.Error("members' bytes are not counted for their quotas", "err", err)
		}
		now := time.Now()
		asked := w.ask(func() {
			if err != nil {
				w.loop.problems.set(problemMembers, err.Error())
				return
			}
			w.loop.problems.clear(problemMembers)
			w.loop.limited.count(w.loop.bytes(counted), now)
			w.loop.checkLimited(now)
		})
		if errors.Is(asked, errStopped) {
			return
		}
	}
}
