package flows

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Owner is the member to whom a connection is attributed.
type Owner struct {
	Member       rules.MemberID
	Name, Serial string // of the certificate when the connection was opened
	By           *attribution.Session
	Kind         wire.Kind
}

// Usage sums up a member's connections.
type Usage struct {
	Open                           int
	BytesFromClient, BytesToClient uint64
}

// Flows holds members' connections in conntrack.
type Flows struct {
	attribute func(netstate.Flow) (Owner, bool)
	keepEvery time.Duration

	open   map[netstate.Tuple]*connection
	fast   map[netstate.Tuple]*Fast // may contain closed connections that could not be removed
	closed map[rules.MemberID]Usage // bytes of connections that are closed
}

type connection struct {
	Owner
	opened time.Time
	flow   netstate.Flow
	// passed has the bytes that the fast path carried before. Those of a connection that is on it now are not included.
	passed forward.Passed
}

// New returns an empty Flows. attribute returns the owner of a connection, or false if it is not a member's. keepEvery is the
// interval at which conntrack's entries of connections on the fast path are prolonged.
func New(attribute func(netstate.Flow) (Owner, bool), keepEvery time.Duration) *Flows {
	return &Flows{
		attribute: attribute, keepEvery: keepEvery, open: make(map[netstate.Tuple]*connection),
		fast: make(map[netstate.Tuple]*Fast), closed: make(map[rules.MemberID]Usage),
	}
}

// Open records a connection, and returns the log's line about it. It returns false if the connection is known, or not a
// member's.
func (x *Flows) Open(event attribution.Event, f netstate.Flow, now time.Time) (attribution.Entry, bool) {
	if x.open[f.Origin] != nil {
		return attribution.Entry{}, false
	}
	owner, ok := x.attribute(f)
	if !ok {
		return attribution.Entry{}, false
	}
	c := &connection{Owner: owner, opened: now, flow: f}
	x.open[f.Origin] = c
	e := c.entry(event)
	e.Time = now
	return e, true
}

// Close records the end of a connection, and returns the log's line about it. It returns false if the connection is not a
// member's. seen reports whether the end itself was observed, with the bytes. The connection must have left the fast path.
func (x *Flows) Close(f netstate.Flow, seen bool, now time.Time) (attribution.Entry, bool) {
	c := x.open[f.Origin]
	if c == nil { // its beginning was lost
		owner, ok := x.attribute(f)
		if !ok {
			return attribution.Entry{}, false
		}
		c = &connection{Owner: owner, flow: f}
	}
	delete(x.open, f.Origin)
	e := c.entry(attribution.FlowClosed)
	e.Time, e.Opened = now, c.opened
	if seen {
		up, down := f.BytesOrigin+c.passed.Origin, f.BytesReply+c.passed.Reply
		e.BytesFromClient, e.BytesToClient = &up, &down
		used := x.closed[c.Member]
		used.BytesFromClient += up
		used.BytesToClient += down
		x.closed[c.Member] = used
	}
	return e, true
}

// Gone returns the known connections that are missing in there. It is called after events were lost.
func (x *Flows) Gone(there map[netstate.Tuple]struct{}) []netstate.Flow {
	var list []netstate.Flow
	for origin, c := range x.open {
		if _, ok := there[origin]; !ok {
			list = append(list, c.flow)
		}
	}
	return list
}

// All returns the connections that are open.
func (x *Flows) All() []netstate.Flow { return x.Gone(nil) }

// Carried sets the bytes that the fast path carried of a connection before.
func (x *Flows) Carried(origin netstate.Tuple, passed forward.Passed) {
	if c := x.open[origin]; c != nil {
		c.passed = passed
	}
}

// Passed returns the bytes of a connection that bypassed netfilter. look returns those of one on the fast path.
func (x *Flows) Passed(origin netstate.Tuple, look func(*Fast) forward.Passed) forward.Passed {
	if f := x.fast[origin]; f != nil {
		return look(f)
	}
	if c := x.open[origin]; c != nil {
		return c.passed
	}
	return forward.Passed{}
}

// Usage returns each member's usage. counted has the bytes that netfilter counted.
func (x *Flows) Usage(counted map[netstate.Tuple]netstate.Flow, look func(*Fast) forward.Passed) map[rules.MemberID]Usage {
	all := make(map[rules.MemberID]Usage, len(x.closed))
	for id, used := range x.closed {
		all[id] = used
	}
	for origin, c := range x.open {
		used, f, passed := all[c.Member], counted[origin], x.Passed(origin, look)
		used.Open++
		used.BytesFromClient += f.BytesOrigin + passed.Origin
		used.BytesToClient += f.BytesReply + passed.Reply
		all[c.Member] = used
	}
	return all
}

func (c *connection) entry(event attribution.Event) attribution.Entry {
	e := attribution.Entry{
		Event: event, Member: c.Name, Serial: c.Serial, By: c.By,
		Client: c.flow.Origin.Src.Addr(), ClientPort: c.flow.Origin.Src.Port(), Port: c.flow.Origin.Dst.Port(),
		Server: c.flow.Reply.Src, Egress: c.flow.Reply.Dst,
	}
	switch c.Kind {
	case wire.Mapped:
	case wire.InBand:
		e.Kind = c.Kind.String()
	case wire.Converter: // the converter called the server; the client is not known here
		e.Kind, e.Client, e.ClientPort, e.Port = c.Kind.String(), netip.Addr{}, 0, 0
	default: // a tunnel's: the client called the server itself
		e.Kind, e.Tunnel, e.Client, e.Port = c.Kind.String(), e.Client, netip.Addr{}, 0
	}
	return e
}
