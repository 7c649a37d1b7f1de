package lease

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// Times after which refused members may try again.
const (
	retryQuota = 30 * time.Second
	retryFault = 5 * time.Second
)

func refuse(id uint64, code wire.Code, message string) *wire.Refusal {
	return &wire.Refusal{ID: id, Code: code, Message: message}
}

func refuseFor(retry time.Duration, id uint64, code wire.Code, message string) *wire.Refusal {
	return &wire.Refusal{ID: id, Code: code, Message: message, RetryAfter: retry}
}

// Failed refuses a request that the kernel did not carry out.
func Failed(id uint64) *wire.Refusal { return refuseFor(retryFault, id, wire.Internal, "") }

// NoteRefusal counts a refusal, and returns the log's line about it; nil if none is due. Server is the zero value where
// the request named none.
func (l *Leases) NoteRefusal(r Request, server netip.AddrPort, refusal *wire.Refusal, now time.Time) *attribution.Entry {
	m := l.members.get(r.Name, r.Serial)
	if m == nil {
		m = l.members.of(0)
	}
	m.Refused[refusal.Code]++
	e, due := l.refusals.Entry(now, r.Name, r.Serial, refusal.Code.String(), refusal.Message, r.Client, server)
	if !due {
		return nil
	}
	e.By = l.sessions.live[r.Session].by
	return &e
}

// forbidden refuses a server that the policy denies. One that is denied only until the waypoint knows where others
// see it may be asked for again.
func forbidden(id uint64, err error) *wire.Refusal {
	if egress.ForNow(err) {
		return refuseFor(retryFault, id, wire.NotReady, err.Error())
	}
	return refuse(id, wire.DestinationForbidden, err.Error())
}

func tooManyMembers(id uint64) *wire.Refusal {
	return refuse(id, wire.Busy, "the waypoint has as many members as it can distinguish")
}

// loaded refuses a request for another mapping while the waypoint is loaded and the member has another; nil if it may
// have one.
func (c Conditions) loaded(r MappingRequest) *wire.Refusal {
	left := c.LoadedUntil.Sub(c.Now)
	if r.Sole || left <= 0 {
		return nil
	}
	return refuseFor(wire.Span(left), r.ID, wire.Loaded, "")
}

// closed refuses a request while the waypoint gives nothing; nil if it gives.
func (c Conditions) closed(id uint64) *wire.Refusal {
	if !c.Giving.Closed() {
		return nil
	}
	refusal := refuse(id, c.Giving.Cause.Code(), "")
	if !c.Giving.Until.IsZero() {
		refusal.RetryAfter = wire.Span(c.Giving.Until.Sub(c.Now))
	}
	return refusal
}
