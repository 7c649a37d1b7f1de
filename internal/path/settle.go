package path

import (
	"maps"
	"time"
)

// This file counts what subflows carried after their last sample. The kernel reports a subflow's last counters when
// it frees the subflow. That report and the end of the subflow may come in either order. Whichever comes first waits
// here for the other.

const (
	// awaitsCounters bounds the wait of an ended subflow for its last counters. The kernel may take that long to close
	// it.
	awaitsCounters = 3 * time.Minute
	// countersWait bounds the wait of last counters for the report that their subflow ended.
	countersWait = 10 * time.Second
	// mostUnsettled bounds each of the two lists. Subflows beyond it are counted up to their last samples.
	mostUnsettled = 16384
	// mostForeign is the number of waiting counters from which those of unknown sockets are dropped. Below it they are
	// kept: the first connection to a server may end before its beginning is reported, and then looks like plain TCP.
	mostForeign = 4096
)

// settlements matches the ends of subflows with their last counters.
type settlements struct {
	ended   map[Ends]endedCount
	counted map[Ends]lastCount
	swept   time.Time // when expired counters were last dropped
}

type endedCount struct {
	by              account
	received, acked uint64 // as last sampled
	at              time.Time
}

type lastCount struct {
	received, acked uint64
	at              time.Time
}

func newSettlements() settlements {
	return settlements{ended: make(map[Ends]endedCount), counted: make(map[Ends]lastCount)}
}

// settleEnds counts to the end those subflows of the connection that ended and were not counted yet.
func (m *Manager) settleEnds(t turn) {
	for i := range t.ended {
		if e := &t.ended[i]; !e.settled {
			e.settled = true
			m.settle(t.conn, e.subflow, t.now)
		}
	}
}

// settleAll counts all subflows of an ended connection to the end.
func (m *Manager) settleAll(c *conn, now time.Time) {
	m.settleEnds(m.turn(c, now))
	for _, s := range c.subflows {
		m.settle(c, s, now)
	}
}

// settle counts what an ended subflow carried after its last sample, if its last counters are known. Otherwise it
// waits for them.
func (m *Manager) settle(c *conn, s *subflow, now time.Time) {
	by, ok := m.accountOf(c, s)
	if !ok || !s.up || !c.counts(s) {
		return
	}
	key, list := Ends{s.local, s.remote}, &m.unsettled
	last, known := list.counted[key]
	switch {
	case known:
		delete(list.counted, key)
		m.count(by, since(last.received, s.received), since(last.acked, s.acked))
	case len(list.ended) < mostUnsettled:
		list.ended[key] = endedCount{by, s.received, s.acked, now}
	}
}

// counted handles a subflow's last counters.
func (m *Manager) counted(ev SubflowCounted, now time.Time) {
	key, list := Ends{ev.Local, ev.Remote}, &m.unsettled
	if len(list.counted) >= mostForeign && now.Sub(list.swept) > countersWait/10 {
		list.forget(now)
	}
	end, known := list.ended[key]
	switch {
	case known:
		delete(list.ended, key)
		m.count(end.by, since(ev.BytesReceived, end.received), since(ev.BytesAcked, end.acked))
	case len(list.counted) < mostForeign || len(list.counted) < mostUnsettled && m.perhapsOurs(key):
		list.counted[key] = lastCount{ev.BytesReceived, ev.BytesAcked, now}
	}
}

// perhapsOurs reports whether a socket with these addresses may be a subflow of a connection whose beginning was not
// reported yet.
func (m *Manager) perhapsOurs(ends Ends) bool {
	if len(m.conns.byServer[ends.Remote]) > 0 || m.host.tunnels[ends.Local.Addr()] {
		return true
	}
	for v := range m.detours.sessions.worth {
		if v.addr == ends.Remote.Addr() {
			return true
		}
	}
	for _, o := range m.detours.general { // the session may not have been measured yet
		if o.Remote.Addr() == ends.Remote.Addr() {
			return true
		}
	}
	return false
}

// counts reports whether all that the subflow's counters show was carried since the Manager began, or was counted
// already.
func (c *conn) counts(s *subflow) bool { return !c.adopted || !s.at.IsZero() }

// since returns the growth of a counter. It is 0 if the counter fell: then the counters are another subflow's, or an estimate
// (Sample.BytesSacked) was too high.
func since(now, before uint64) uint64 {
	if now < before {
		return 0
	}
	return now - before
}

// forget drops what has waited for too long.
func (l *settlements) forget(now time.Time) {
	l.swept = now
	maps.DeleteFunc(l.ended, func(_ Ends, e endedCount) bool { return now.Sub(e.at) > awaitsCounters })
	maps.DeleteFunc(l.counted, func(_ Ends, c lastCount) bool { return now.Sub(c.at) > countersWait })
}
