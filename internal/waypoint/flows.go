package waypoint

import (
	"errors"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// liveFlow is a connection of a member, as long as conntrack has it.
type liveFlow struct {
	member *member
	serial string // of the certificate when it was opened
	by     *attribution.Session
	kind   wire.Kind
	opened time.Time
	flow   netstate.Flow
	// passed is what the fast path has carried of it; what it carries now is not yet in it.
	passed forward.Passed
}

// flowNews is what readEvents hands to the owner: events, or that some were lost.
type flowNews struct {
	events []netstate.FlowEvent
	lost   bool
}

// readEvents waits for conntrack events until the subscription is closed.
func (w *Waypoint) readEvents() {
	for {
		events, err := w.kernel.events.Receive()
		news := flowNews{events: events, lost: errors.Is(err, netstate.ErrEventsLost)}
		if err != nil && !news.lost {
			select {
			case <-w.stop:
			default:
				w.log.Error("connections are no longer recorded", "err", err)
				_ = w.ask(func() { w.problems.set(problemEvents, err.Error()) })
			}
			return
		}
		select {
		case w.flow <- news:
		case <-w.stop:
			return
		}
	}
}

func (w *Waypoint) listFlows(each func(netstate.Flow)) error {
	w.flowsMu.Lock()
	defer w.flowsMu.Unlock()
	return w.kernel.flows.Flows(w.config.marks().Ours(), each)
}

func (w *Waypoint) noteFlows(news flowNews) {
	for _, e := range news.events {
		if e.Closed {
			w.closeFlow(e.Flow, true)
		} else {
			w.openFlow(attribution.FlowOpened, e.Flow)
			w.watch(e.Flow)
		}
	}
	if news.lost {
		w.eventsLost++
		w.resyncFlows()
	}
}

// resyncFlows compares the flows we know with those there are, after events were lost.
func (w *Waypoint) resyncFlows() {
	there := make(map[netstate.Tuple]struct{}, len(w.live))
	err := w.listFlows(func(f netstate.Flow) {
		there[f.Origin] = struct{}{}
		w.openFlow(attribution.FlowFound, f)
		w.watch(f)
	})
	if err != nil {
		w.log.Warn("events of connections were lost and cannot be made up for", "err", err)
		return
	}
	for tuple, l := range w.live {
		if _, ok := there[tuple]; !ok {
			w.closeFlow(l.flow, false)
		}
	}
}

func (w *Waypoint) openFlow(event attribution.Event, f netstate.Flow) {
	id, kind, ours := w.config.marks().OfMark(f.Mark)
	if _, known := w.live[f.Origin]; known || !ours {
		return
	}
	m := w.members.of(id)
	l := liveFlow{member: m, serial: m.Serial, by: w.allowedBy(m, kind, f), kind: kind, opened: time.Now(), flow: f}
	w.live[f.Origin] = l
	m.flows++
	e := l.entry(event)
	e.Time = l.opened
	w.record.Write(e)
}

// allowedBy is the session over which the member asked for what let a flow through; nil if it is not known.
// Of several from one address, any of which lets in-band flows through, it is the newest.
func (w *Waypoint) allowedBy(m *member, kind wire.Kind, f netstate.Flow) *attribution.Session {
	from := f.Origin.Src.Addr()
	switch kind {
	case wire.Mapped:
		if x := w.index.byKey[rules.Key{Client: from, Port: f.Origin.Dst.Port()}]; x != nil && x.member == m.ID {
			return x.by
		}
	case wire.InBand:
		return w.passes.by(presence{m, from})
	default:
		if t := w.tunnels[from]; t != nil && t.member == m {
			return t.by
		}
	}
	return nil
}

// closeFlow records the end of a flow, with its bytes if its end was seen.
func (w *Waypoint) closeFlow(f netstate.Flow, seen bool) {
	_ = w.leaveFastPath(f.Origin) // which logs its failure
	l, known := w.live[f.Origin]
	if !known { // its beginning was lost
		id, kind, ours := w.config.marks().OfMark(f.Mark)
		if !ours {
			return
		}
		m := w.members.of(id)
		l = liveFlow{member: m, serial: m.Serial, by: w.allowedBy(m, kind, f), kind: kind, flow: f}
	} else {
		delete(w.live, f.Origin)
		l.member.flows--
	}
	e := l.entry(attribution.FlowClosed)
	e.Time, e.Opened = time.Now(), l.opened
	if seen {
		f.BytesOrigin += l.passed.Origin
		f.BytesReply += l.passed.Reply
		e.BytesFromClient, e.BytesToClient = &f.BytesOrigin, &f.BytesReply
		l.member.bytesFromClient += f.BytesOrigin
		l.member.bytesToClient += f.BytesReply
	}
	w.record.Write(e)
}

func (l liveFlow) entry(event attribution.Event) attribution.Entry {
	e := attribution.Entry{Event: event, Member: l.member.Name, Serial: l.serial, By: l.by,
		Client: l.flow.Origin.Src.Addr(), ClientPort: l.flow.Origin.Src.Port(), Port: l.flow.Origin.Dst.Port(),
		Server: l.flow.Reply.Src, Egress: l.flow.Reply.Dst}
	switch l.kind {
	case wire.Mapped:
	case wire.InBand:
		e.Kind = l.kind.String()
	default: // a tunnel's: the client called the server itself
		e.Kind, e.Tunnel, e.Client, e.Port = l.kind.String(), e.Client, netip.Addr{}, 0
	}
	return e
}
