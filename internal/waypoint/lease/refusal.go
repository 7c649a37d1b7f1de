package lease

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
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

// forbidden refuses a server that the policy denies. A server that is denied only until the waypoint knows its external
// address may be requested again.
func forbidden(id uint64, err error) *wire.Refusal {
	if egress.ForNow(err) {
		return refuseFor(retryFault, id, wire.NotReady, err.Error())
	}
	return refuse(id, wire.DestinationForbidden, err.Error())
}

func tooManyMembers(id uint64) *wire.Refusal {
	return refuse(id, wire.Busy, "the waypoint has as many members as it can distinguish")
}

// loaded refuses a request for another mapping if the waypoint is loaded and the member has another waypoint. It returns
// nil if the member may have the mapping.
func (c Conditions) loaded(r MappingRequest) *wire.Refusal {
	left := c.LoadedUntil.Sub(c.Now)
	if r.Sole || left <= 0 {
		return nil
	}
	return refuseFor(wire.Span(wire.Spread(left, c.LoadedUntil, r.Name)), r.ID, wire.Loaded, "")
}

// closed refuses a request if the waypoint gives nothing now, to anybody or to this member. Otherwise it returns nil.
// Members are notified when the waypoint's own hours begin or its quota is renewed. They are not notified about their
// own terms, so the refusal says when to ask again.
func (c Conditions) closed(r Request) *wire.Refusal {
	standing, own := c.Giving, c.of(r.Name).Giving
	if !standing.Closed() && !own.Closed() {
		return nil
	}
	refusal := refuse(r.ID, standing.Cause.Code(), "")
	if !standing.Closed() {
		standing, refusal = own, refuse(r.ID, wire.NotOffered, ownTerms[own.Cause])
	}
	if !standing.Until.IsZero() {
		refusal.RetryAfter = wire.Span(standing.Until.Sub(c.Now))
	}
	if own.Closed() && (refusal.RetryAfter == 0 || refusal.RetryAfter > retryOwn) {
		refusal.RetryAfter = retryOwn
	}
	return refusal
}

// retryOwn bounds the time after which a member asks again that was refused by its own terms. The operator may change
// the terms, and the member is not notified of that.
const retryOwn = 10 * time.Minute

// ownTerms are the messages to members that are refused by their own terms.
var ownTerms = map[giving.Cause]string{
	giving.OutsideHours: "the operator of this waypoint lets you use it at other hours",
	giving.QuotaUsed:    "your monthly quota at this waypoint is used up",
}

// anywhere refuses leases that lead to any server to a member whose servers are limited, because only mappings are
// decided for each server. It returns nil if the member may have them.
func (c Conditions) anywhere(r Request) *wire.Refusal {
	if !c.of(r.Name).Servers.Limits() {
		return nil
	}
	return refuse(r.ID, wire.NotOffered, "the operator of this waypoint limits which servers you may use, so it offers you mapped detours only")
}
