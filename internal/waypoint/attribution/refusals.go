package attribution

import (
	"net/netip"
	"time"
)

// refusalInterval is how often refusals of one kind are written for a member.
const refusalInterval = time.Minute

// Refusals keeps a member who asks in a loop from pushing the record of everybody's traffic out of
// the log: of refusals of one kind it lets one through a minute and counts the others. Not for
// concurrent use.
type Refusals struct{ kinds map[refusalKind]*refusalCount }

type refusalKind struct {
	member, code string
}

type refusalCount struct {
	written time.Time
	others  int
}

// NewRefusals makes an empty one.
func NewRefusals() *Refusals { return &Refusals{kinds: make(map[refusalKind]*refusalCount)} }

// Entry is the line to write for a refusal, if one is due.
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
