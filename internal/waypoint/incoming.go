package waypoint

import (
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
)

// takePorts decides about ports at which the converter is to take connections for a member.
func (l *loop) takePorts(r lease.PortsRequest, now time.Time) []wire.IncomingGrant {
	l.surroundings.refreshListeners(now)
	answers := l.leases.TakePorts(r, l.conditions(now))
	l.tellIncoming()
	for _, a := range answers {
		if a.Refused != 0 {
			_ = l.refused(r.Request, &wire.Refusal{ID: r.ID, Code: a.Refused}, now)
		}
	}
	return answers
}

// tellIncoming reports the ports at which connections are to be taken for members, if they have changed.
func (l *loop) tellIncoming() {
	ports := l.leases.Ports()
	if l.config.TellIncoming == nil || l.incoming != nil && lease.EqualPorts(ports, l.incoming) {
		return
	}
	l.incoming = ports
	list := make([]Incoming, len(ports))
	for i, p := range ports {
		list[i] = Incoming{Port: p, Mark: l.config.marks().Mark(p.ID, wire.Converter)}
	}
	l.config.TellIncoming(list)
}
