package lease

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Request identifies a member's request in one of its sessions.
type Request struct {
	ID           uint64
	Session      uint64
	Name, Serial string     // of the member, as in its certificate
	Client       netip.Addr // its address
}

// MappingRequest asks for a port that leads to a server.
type MappingRequest struct {
	Request
	Server   netip.AddrPort
	Proposed uint16 // the port that the client prefers; 0: any
	Sole     bool   // the client has no other waypoint
}

// Batch is a group of requests for mappings that are decided, and written to the kernel, together.
type Batch struct {
	leases   *Leases
	under    Conditions
	outcomes []outcome
	added    []*Mapping
	renewed  []renewal
	touched  map[*Mapping]struct{}
}

// outcome is the decision on a request: a mapping or a refusal.
type outcome struct {
	request MappingRequest
	member  *Member
	mapping *Mapping
	added   bool
	refusal *wire.Refusal
}

type renewal struct {
	mapping *Mapping
	before  time.Time // its expiry
}

// Decide decides on requests. The leases change at once; Undo reverts that.
func (l *Leases) Decide(requests []MappingRequest, under Conditions) *Batch {
	b := &Batch{leases: l, under: under, touched: make(map[*Mapping]struct{}, len(requests))}
	for _, r := range requests {
		b.outcomes = append(b.outcomes, b.decide(r))
	}
	return b
}

func (b *Batch) decide(r MappingRequest) outcome {
	l := b.leases
	o := outcome{request: r, member: l.members.get(r.Name, r.Serial)}
	if o.member == nil {
		o.refusal = tooManyMembers(r.ID)
		return o
	}
	if o.refusal = b.mayMap(r); o.refusal != nil {
		return o
	}
	t := target{member: o.member.ID, client: r.Client, server: r.Server}
	expires := b.under.Now.Add(l.terms.Lifetime)
	if found := l.mappings.byTarget[t]; found != nil {
		b.renew(found, expires)
		o.mapping = found
		return o
	}
	if o.refusal = b.under.loaded(r); o.refusal != nil {
		return o
	}
	if have := l.mappings.byMember[t.member]; have >= l.terms.MappingsPerMember {
		o.refusal = refuseFor(retryQuota, r.ID, wire.QuotaMappings, fmt.Sprintf("you have %d mappings, and may have %d", have, l.terms.MappingsPerMember))
		return o
	}
	port, ok := b.choosePort(t, r.Proposed)
	if !ok {
		o.refusal = refuseFor(retryQuota, r.ID, wire.Busy, fmt.Sprintf("all ports are in use for your address %v", t.client))
		return o
	}
	o.mapping, o.added = &Mapping{Key: rules.Key{Client: t.client, Port: port}, Server: t.server, Member: t.member}, true
	l.mappings.add(o.mapping, expires)
	b.added = append(b.added, o.mapping)
	b.touched[o.mapping] = struct{}{}
	return o
}

// mayMap refuses what the policy or the operator forbids.
func (b *Batch) mayMap(r MappingRequest) *wire.Refusal {
	if !r.Server.IsValid() || !r.Client.IsValid() {
		return refuse(r.ID, wire.Malformed, "the request names no server")
	}
	if err := b.under.Policy.Check(r.Server); err != nil {
		return forbidden(r.ID, err)
	}
	if err := b.under.of(r.Name).Servers.Check(r.Server); err != nil {
		return forbidden(r.ID, err)
	}
	if r.Server.Addr().Is4() != r.Client.Is4() {
		return refuse(r.ID, wire.FamilyMismatch, "")
	}
	return b.under.closed(r.Request)
}

func (b *Batch) choosePort(t target, proposed uint16) (port uint16, ok bool) {
	taken := b.under.PortTaken
	if b.leases.guards(t.server) {
		proposed = 0
		taken = func(port uint16) bool { return port == t.server.Port() || b.under.PortTaken(port) }
	}
	return b.leases.mappings.choosePort(t, proposed, taken)
}

// guards reports whether the port with the server's number is reserved for authenticated in-band SYNs. A mapping at that port
// would admit every SYN, including forged ones and those that lost their option, so it gets another port. This does not
// depend on whether the client has in-band detours now, because it may request them next.
func (l *Leases) guards(server netip.AddrPort) bool {
	return l.terms.InBand == rules.InBandAuthenticated && server.Addr().Is4()
}

// renew extends a mapping, once in a batch.
func (b *Batch) renew(m *Mapping, expires time.Time) {
	if _, again := b.touched[m]; again {
		return
	}
	b.touched[m] = struct{}{}
	b.renewed = append(b.renewed, renewal{m, m.Expires()})
	b.leases.mappings.extend(m, expires)
}

// Change returns the change for the kernel's table, and whether there is one.
func (b *Batch) Change() (change rules.Change, needed bool) {
	for _, m := range b.added {
		change.Add = append(change.Add, m.rule(b.under.Now))
	}
	for _, r := range b.renewed {
		change.Renew = append(change.Renew, r.mapping.rule(b.under.Now))
	}
	for _, m := range b.unsaved() {
		change.Members = append(change.Members, m.Member)
	}
	return change, len(b.touched) > 0
}

// unsaved returns the members whose ids or serials the kernel's table does not have yet.
func (b *Batch) unsaved() []*Member {
	var list []*Member
	for _, o := range b.outcomes {
		if o.mapping != nil && !o.member.saved && !slices.Contains(list, o.member) {
			list = append(list, o.member)
		}
	}
	return list
}

// Undo reverts the decisions, because they were not written.
func (b *Batch) Undo() {
	for _, m := range b.added {
		b.leases.mappings.remove(m)
	}
	for _, r := range b.renewed {
		b.leases.mappings.extend(r.mapping, r.before)
	}
}

// Written records that the change was written.
func (b *Batch) Written() {
	for _, m := range b.unsaved() {
		m.saved = true
	}
}

// MappingAnswer answers a MappingRequest with a grant or a refusal. Entry is the line for the log; nil: none.
type MappingAnswer struct {
	Grant   wire.MapGrant
	Refusal *wire.Refusal
	Entry   *attribution.Entry
}

// Answers returns the answers, in the order of the requests. If the batch failed, all requests are refused.
func (b *Batch) Answers(failed bool) []MappingAnswer {
	answers := make([]MappingAnswer, len(b.outcomes))
	for i, o := range b.outcomes {
		if failed && o.refusal == nil {
			o.refusal = Failed(o.request.ID)
		}
		if o.refusal != nil {
			entry := b.leases.NoteRefusal(o.request.Request, o.request.Server, o.refusal, b.under.Now)
			answers[i] = MappingAnswer{Refusal: o.refusal, Entry: entry}
			continue
		}
		answers[i] = b.grant(o)
	}
	return answers
}

func (b *Batch) grant(o outcome) MappingAnswer {
	l, m := b.leases, o.mapping
	o.member.Granted++
	if by := l.sessions.live[o.request.Session].by; by != nil {
		m.by = by
	}
	a := MappingAnswer{Grant: wire.MapGrant{
		ID: o.request.ID, Port: m.Key.Port, Lease: m.Expires().Sub(b.under.Now), Client: m.Key.Client,
	}}
	if o.added {
		e := l.mappingEntry(attribution.MappingGranted, b.under.Now, m)
		e.LeaseSeconds = l.terms.Lifetime.Seconds()
		a.Entry = &e
	}
	return a
}

func (l *Leases) mappingEntry(event attribution.Event, now time.Time, m *Mapping) attribution.Entry {
	who := l.members.of(m.Member)
	return attribution.Entry{Time: now, Event: event, Member: who.Name, Serial: who.Serial, By: m.by,
		Client: m.Key.Client, Port: m.Key.Port, Server: m.Server}
}
