package engine

import "time"

// This file sets socket options that only lasting connections need on ends to servers. Clients' ends inherit them from
// the listener.

// startWrite prepares an end for a write. The kernel sends the first write at once, because nothing before it is
// unacknowledged. So only ends that are written to again need an option for that.
func (l *loop) startWrite(e *end) {
	switch {
	case e.is&isWritten == 0:
		e.is |= isWritten
		if e == &e.pair.client {
			e.pair.spoke(true)
		}
	case e.is&isPrompt == 0:
		e.is |= isPrompt
		l.sockets.sendAtOnce(int(e.fd))
	}
}

// settleAfter is the least age at which a connection is settled; the greatest is about twice that. Its age counts from
// when it began to connect to its server.
const settleAfter = time.Second

// settleLater notes a pair that began to connect to its server. It is settled if it is still open by then.
func (l *loop) settleLater(p *pair) {
	if l.settles.IsZero() {
		l.settles = time.Now().Add(settleAfter)
	}
	l.young = append(l.young, p)
}

// settle turns keep-alive on for the connections to servers that are old enough, so that they end if the server vanishes.
func (l *loop) settle(now time.Time) {
	if l.settles.IsZero() || now.Before(l.settles) {
		return
	}
	for _, p := range l.older {
		if !p.closed && p.server.fd >= 0 {
			_ = keepAlive(int(p.server.fd))
		}
	}
	l.older, l.young, l.settles = l.young, nil, time.Time{}
	if len(l.older) > 0 {
		l.settles = now.Add(settleAfter)
	}
}
