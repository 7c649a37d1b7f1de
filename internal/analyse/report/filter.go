package report

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/analyse/track"
)

// Filter chooses connections. A field that is not set lets all connections pass.
type Filter struct {
	Addresses    []netip.Prefix // of any end of any subflow
	Ports        []uint16       // of any end of any subflow
	Tokens       []uint32
	Since, Until time.Time // alive then
}

// Matches reports whether a connection is chosen.
func (f *Filter) Matches(r *track.Record) bool {
	if !f.Until.IsZero() && r.Began.After(f.Until) {
		return false
	}
	if !f.Since.IsZero() && r.Began.Add(time.Duration(r.Duration*1e9)).Before(f.Since) {
		return false
	}
	if len(f.Tokens) > 0 && !slices.ContainsFunc(r.Tokens, func(t uint32) bool { return slices.Contains(f.Tokens, t) }) {
		return false
	}
	return f.endpoints(r)
}

func (f *Filter) endpoints(r *track.Record) bool {
	address, port := len(f.Addresses) == 0, len(f.Ports) == 0
	for _, s := range r.Subflows {
		for _, end := range []netip.AddrPort{s.Client, s.Server} {
			address = address || slices.ContainsFunc(f.Addresses, func(p netip.Prefix) bool { return p.Contains(end.Addr()) })
			port = port || slices.Contains(f.Ports, end.Port())
		}
	}
	return address && port
}
