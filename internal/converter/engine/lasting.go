package engine

import "time"

// This file sets options of ends to servers that only lasting connections need. Clients' ends inherit them from the listener.

// startWrite prepares an end for a write. The first one is sent at once, as nothing before it is unacknowledged. So only ends
// that are written to again need an option for that.
func (l *loop) startWrite(e *end) {
	switch {
	case e.is&isPrompt != 0:
	case e.is&isWritten == 0:
		e.is |= isWritten
	default:
		e.is |= isPrompt
		l.sockets.sendAtOnce(int(e.fd))
	}
}

// A connection gets what only long ones need between settleAfter and twice that time after it began to connect to its server.
const settleAfter = time.Second

// settleLater has a pair settled if it still is there then.
func (l *loop) settleLater(p *pair) {
	if l.settles.IsZero() {
		l.settles = time.Now().Add(settleAfter)
	}
	l.young = append(l.young, p)
}

// settle has ends to servers that live for longer ended if they vanish.
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
