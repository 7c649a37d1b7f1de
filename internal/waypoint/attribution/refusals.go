package attribution

import (
	"net/netip"
	"time"
)

// refusalInterval is the minimum time between two lines about refusals of one kind for a member.
const refusalInterval = time.Minute

// Refusals limits the lines about refusals, so that a member that sends requests in a loop cannot push other lines out of
// the log: one a minute for each kind; the others are counted. It is not safe for concurrent use.
type Refusals struct{ kinds map[refusalKind]*refusalCount }

type refusalKind struct {
	member, code string
}

type refusalCount struct {
	written time.Time
	others  int
}

// NewRefusals returns an empty Refusals.
func NewRefusals() *Refusals { return &Refusals{kinds: make(map[refusalKind]*refusalCount)} }

// Entry returns the line for a refusal, if one is due.
func (r *Refusals) Entry(now time.Time, member, serial, code, reason string, client netip.Addr, server netip.AddrPort) (Entry, bool) {
	kind := refusalKind{member, code}
	count := r.kinds[kind]
	if count == nil {
		count = &refusalCount{}
		r.kinds[kind] = count
	} else if now.Sub(count.written) < refusalInterval {
		count.others++
		return Entry{}, false
	}
	repeated := count.others
	count.written, count.others = now, 0
	return Entry{Time: now, Event: Refused, Member: member, Serial: serial, Client: client, Server: server,
		Refusal: code, Reason: reason, Repeated: repeated}, true
}
