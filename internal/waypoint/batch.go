package waypoint

import (
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// maxBatch bounds how many requests share a transaction, and so how long one may wait.
const maxBatch = 512

// batch is what a group of requests changes, in the index at once and in the kernel by one
// transaction. A lone request is a batch of its own and waits for nothing; while it is being
// written, the next batch gathers.
type batch struct {
	now      time.Time
	outcomes []outcome
	added    []*mapping
	renewed  []renewal
	touched  map[*mapping]struct{}
}

type renewal struct {
	mapping *mapping
	before  time.Time // its expiry
}

func (b *batch) add(x *index, m *mapping) {
	x.add(m)
	b.added = append(b.added, m)
	b.touched[m] = struct{}{}
}

// renew extends a mapping, once in a batch.
func (b *batch) renew(x *index, m *mapping, expires time.Time) {
	if _, again := b.touched[m]; again {
		return
	}
	b.touched[m] = struct{}{}
	b.renewed = append(b.renewed, renewal{m, m.expires})
	x.extend(m, expires)
}

func (b *batch) undo(x *index) {
	for _, m := range b.added {
		x.remove(m)
	}
	for _, r := range b.renewed {
		x.extend(r.mapping, r.before)
	}
}

// unsaved lists the members whose ids or serials the kernel does not know yet.
func (b *batch) unsaved() []*member {
	var list []*member
	for _, o := range b.outcomes {
		if o.mapping != nil && !o.member.saved && !slices.Contains(list, o.member) {
			list = append(list, o.member)
		}
	}
	return list
}

// serve takes the requests that wait beside the first one, decides, writes and answers.
func (w *Waypoint) serve(first *request) {
	requests := []*request{first}
	for len(requests) < maxBatch {
		select {
		case r := <-w.requests:
			requests = append(requests, r)
			continue
		default:
		}
		break
	}
	b, err := w.try(requests)
	if err != nil {
		// The kernel's table is not as the index thinks: gone, or with a mapping we missed.
		if err = w.reconcile(err); err == nil {
			b, err = w.try(requests)
		}
	}
	if err != nil {
		w.log.Error("cannot write mappings", "requests", len(requests), "err", err)
		w.problems.set(problemTable, err.Error())
	} else {
		w.problems.clear(problemTable)
	}
	for i, r := range requests {
		w.reply(r, b, b.outcomes[i], err)
	}
}

// try decides on the requests and writes the decisions; on an error nothing is changed.
func (w *Waypoint) try(requests []*request) (*batch, error) {
	b := &batch{now: time.Now(), touched: make(map[*mapping]struct{}, len(requests))}
	w.refreshListeners(b.now)
	for _, r := range requests {
		b.outcomes = append(b.outcomes, w.decide(b, r))
	}
	if len(b.touched) == 0 {
		return b, nil
	}
	var change rules.Change
	for _, m := range b.added {
		change.Add = append(change.Add, m.rule(b.now))
	}
	for _, r := range b.renewed {
		change.Renew = append(change.Renew, r.mapping.rule(b.now))
	}
	unsaved := b.unsaved()
	for _, m := range unsaved {
		change.Members = append(change.Members, m.Member)
	}
	if err := w.kernel.rules.Commit(change); err != nil {
		b.undo(w.index)
		return b, err
	}
	for _, m := range unsaved {
		m.saved = true
	}
	return b, nil
}

// reply answers a request and records the answer.
func (w *Waypoint) reply(r *request, b *batch, o outcome, failure error) {
	if o.refusal == nil && failure != nil {
		o.refusal = refuse(r.ID, wire.Internal, "")
		o.refusal.RetryAfter = retryFault
	}
	if o.refusal != nil {
		o.member.refused[o.refusal.Code]++
		if e, due := w.refusals.Entry(b.now, r.peer.Name, r.peer.Serial, o.refusal.Code.String(),
			o.refusal.Message, r.client(), r.Server); due {
			e.By = w.sessions.by(r.peer.ID)
			w.record.Write(e)
		}
		r.answer <- answer{refusal: o.refusal}
		return
	}
	o.member.granted++
	if by := w.sessions.by(r.peer.ID); by != nil {
		o.mapping.by = by
	}
	if o.added {
		e := w.mappingEntry(attribution.MappingGranted, b.now, o.mapping)
		e.LeaseSeconds = w.config.MappingLifetime.Seconds()
		w.record.Write(e)
	}
	r.answer <- answer{grant: wire.MapGrant{
		ID: r.ID, Port: o.mapping.key.Port, Lease: o.mapping.expires.Sub(b.now), Client: o.mapping.key.Client,
	}}
}

func (w *Waypoint) mappingEntry(event attribution.Event, now time.Time, m *mapping) attribution.Entry {
	who := w.members.of(m.member)
	return attribution.Entry{Time: now, Event: event, Member: who.Name, Serial: who.Serial, By: m.by,
		Client: m.key.Client, Port: m.key.Port, Server: m.server}
}
