package attribution

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// Flow is a connection that a waypoint forwarded, assembled from the log's lines about it.
type Flow struct {
	Opened time.Time // or found
	Closed time.Time // zero: the log does not have its end
	Member string
	Serial string
	Kind   string // of the detour
	// Client is the member's address: in the tunnel, if it used one.
	Client  netip.AddrPort
	Server  netip.AddrPort
	Egress  netip.AddrPort
	Session wire.SessionID // zero: only the member is known
	// Bytes of IP packets by direction; nil if the end was not seen.
	BytesFromClient, BytesToClient *uint64
}

// Filter selects flows. Zero fields match all.
type Filter struct {
	Member string
	// Port 0 matches any port.
	Server, Egress netip.AddrPort
	// Flows that were open at some time in between.
	Since, Until time.Time
}

// mapped is the kind of flows whose entries have no kind.
const mapped = "mapped"

func (f Filter) takes(l *line) bool {
	return (f.Member == "" || f.Member == l.Member) &&
		covers(f.Server, l.Server) && covers(f.Egress, l.Egress)
}

func covers(wanted, is netip.AddrPort) bool {
	return !wanted.Addr().IsValid() || wanted.Addr() == is.Addr() && (wanted.Port() == 0 || wanted.Port() == is.Port())
}

func (f Filter) inTime(x *Flow) bool {
	return (f.Until.IsZero() || !x.Opened.After(f.Until)) &&
		(f.Since.IsZero() || x.Closed.IsZero() || !x.Closed.Before(f.Since))
}

// Flows returns matching connections in a log, the oldest first, and their sessions. It does not verify the log; Verify
// does.
func Flows(files []File, filter Filter) ([]Flow, map[wire.SessionID]*Session, error) {
	f := finder{filter: filter, open: make(map[flowKey]*Flow), shown: make(map[wire.SessionID]*Session)}
	if err := eachLine(files, f.read); err != nil {
		return nil, nil, err
	}
	for _, x := range f.open {
		f.done(x)
	}
	slices.SortFunc(f.flows, func(a, b Flow) int {
		return cmp.Or(a.Opened.Compare(b.Opened), a.Egress.Compare(b.Egress), a.Client.Compare(b.Client))
	})
	named := make(map[wire.SessionID]*Session)
	for _, x := range f.flows {
		if s := f.shown[x.Session]; s != nil {
			named[x.Session] = s
		}
	}
	return f.flows, named, nil
}

// Summaries returns the matching summaries in a log. They may cover connections that Flows does not find.
func Summaries(files []File, filter Filter) ([]Entry, error) {
	var found []Entry
	err := eachLine(files, func(t *text) {
		l := t.line
		if l == nil || l.Event != EntriesSummarised || filter.Member != "" && filter.Member != l.Member {
			return
		}
		if filter.inTime(&Flow{Opened: l.Opened, Closed: l.Time}) {
			found = append(found, l.Entry)
		}
	})
	return found, err
}

type finder struct {
	filter Filter
	of     *line
	open   map[flowKey]*Flow
	shown  map[wire.SessionID]*Session
	flows  []Flow
}

// flowKey identifies a flow among those open at the same time.
type flowKey struct{ client, server, egress netip.AddrPort }

func (f *finder) read(t *text) {
	l := t.line
	if l == nil {
		return
	}
	switch l.Event {
	case fileBegan:
		of := *l
		f.of = &of
	case sessionShown:
		if f.of != nil && (f.filter.Member == "" || f.filter.Member == l.Member) {
			f.shown[l.Session] = l.proof(f.of)
		}
	case FlowOpened, FlowFound:
		if f.filter.takes(l) {
			f.begin(l)
		}
	case FlowClosed:
		if f.filter.takes(l) {
			f.close(l)
		}
	}
}

// begin handles the beginning of a flow. A flow found again after a restart is the same.
func (f *finder) begin(l *line) {
	now := flowOf(l)
	if had := f.open[now.key()]; had != nil {
		if l.Event == FlowFound && had.Member == l.Member {
			return
		}
		f.done(had)
	}
	f.open[now.key()] = now
}

func (f *finder) close(l *line) {
	now := flowOf(l)
	now.Opened, now.Closed = l.Opened, l.Time
	if had := f.open[now.key()]; had != nil {
		delete(f.open, now.key())
		now.Opened = had.Opened
		if now.Session.IsZero() {
			now.Session = had.Session
		}
	}
	if now.Opened.IsZero() { // the beginning was not seen
		now.Opened = now.Closed
	}
	now.BytesFromClient, now.BytesToClient = l.BytesFromClient, l.BytesToClient
	f.done(now)
}

func (f *finder) done(x *Flow) {
	if f.filter.inTime(x) {
		f.flows = append(f.flows, *x)
	}
}

func (x *Flow) key() flowKey { return flowKey{x.Client, x.Server, x.Egress} }

func flowOf(l *line) *Flow {
	x := &Flow{Opened: l.Time, Member: l.Member, Serial: l.Serial, Kind: cmp.Or(l.Kind, mapped),
		Client: netip.AddrPortFrom(l.Client, l.ClientPort), Server: l.Server, Egress: l.Egress, Session: l.Session}
	if l.Tunnel.IsValid() {
		x.Client = netip.AddrPortFrom(l.Tunnel, l.ClientPort)
	}
	return x
}
