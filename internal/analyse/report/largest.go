package report

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/analyse/track"
)

// mostListed bounds the list of connections with most data.
const mostListed = 20

// Listed has what the page lists of a connection.
type Listed struct {
	Number                 uint32
	Began                  time.Time
	Duration               float64
	Client, Server         netip.AddrPort // of the first subflow
	Subflows               int
	FromClient, FromServer uint64
	End, Fallback          string // causes
}

// list keeps a connection if it is one of those with most data.
func (t *Totals) list(r *track.Record) {
	if n := len(t.Largest); n == mostListed && t.Largest[n-1].size() > r.FromClient+r.FromServer {
		return
	}
	l := Listed{
		Number: r.Number, Began: r.Began, Duration: r.Duration, Client: r.Subflows[0].Client, Server: r.Subflows[0].Server,
		Subflows: len(r.Subflows), FromClient: r.FromClient, FromServer: r.FromServer, End: endWords[r.End],
	}
	if r.Fallback != nil {
		l.Fallback = causeWords[r.Fallback.Cause]
	}
	t.mergeLargest([]Listed{l})
}

// mergeLargest adds connections, and keeps those with most data. Among equals it keeps those with the lower numbers.
func (t *Totals) mergeLargest(more []Listed) {
	t.Largest = append(t.Largest, more...)
	slices.SortFunc(t.Largest, func(a, b Listed) int { return cmp.Or(cmp.Compare(b.size(), a.size()), cmp.Compare(a.Number, b.Number)) })
	t.Largest = t.Largest[:min(len(t.Largest), mostListed)]
}

func (l Listed) size() uint64 { return l.FromClient + l.FromServer }
