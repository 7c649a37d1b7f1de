package detour

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// Tunnel is a detour through a waypoint that reaches any server. In-band detours count as tunnels
// here.
type Tunnel struct {
	Kind path.Kind
	// Local is the address from which subflows start. It is zero for in-band detours, which start
	// from any.
	Local netip.Addr
	// Path distinguishes paths to the waypoint: it is this host's address as the waypoint sees it.
	// The path manager's experience with one path does not apply to another.
	Path string
}

// tunnelKey identifies a tunnel; there is at most one for each key.
type tunnelKey struct {
	kind path.Kind
	v6   bool // the servers' address family
}

// Opened records that a tunnel is usable. It replaces one of the same kind and family. An unchanged
// tunnel causes no event. For a new one, the servers are told of again to which the waypoint forwards
// nothing: it may have said so before there was a tunnel.
func (b *Book) Opened(v Via, t Tunnel, now time.Time) []path.Event {
	w := b.via(v)
	d := path.Detour{Kind: t.Kind, Waypoint: v.Waypoint}
	key := tunnelKey{kind: t.Kind}
	switch t.Kind {
	case path.InBand:
		// Admission ends with the session, and the TCP option has no room for IPv6.
		if !w.up || !v.Addr.Is4() {
			return nil
		}
		d.Remote = netip.AddrPortFrom(v.Addr, 0)
	case path.WireGuard, path.OpenVPN:
		if !t.Local.IsValid() {
			return nil
		}
		d.Local, d.Endpoint, key.v6 = t.Local, v.Addr, t.Local.Is6()
	default:
		return nil
	}
	if !slices.Contains(b.use, t.Kind) {
		return nil
	}
	d.ID = tunnelID(v, t)
	old, open := w.tunnels[key]
	if open && old == d.ID {
		return nil
	}
	w.tunnels[key] = d.ID
	var out []path.Event
	if open {
		out = append(out, path.DetourWithdrawn{ID: old})
	}
	out = append(out, path.DetourOffered{Detour: d})
	for _, server := range slices.SortedFunc(maps.Keys(w.maps), netip.AddrPort.Compare) {
		if m := w.maps[server]; m.forbidden && now.Before(m.refused) {
			out = append(out, forbidden(Ask{v, server}, m.why, m.refused.Sub(now)))
		}
	}
	return out
}

// Closed records that no tunnel of this kind exists any more.
func (b *Book) Closed(v Via, kind path.Kind) []path.Event {
	if w := b.vias[v]; w != nil {
		return w.close(kind)
	}
	return nil
}

func (w *via) close(kind path.Kind) (out []path.Event) {
	for _, key := range [2]tunnelKey{{kind, false}, {kind, true}} {
		if id, open := w.tunnels[key]; open {
			delete(w.tunnels, key)
			out = append(out, path.DetourWithdrawn{ID: id})
		}
	}
	return out
}

func tunnelID(v Via, t Tunnel) path.DetourID {
	id := t.Kind.String() + " " + v.Waypoint + " " + v.Addr.String()
	if t.Local.IsValid() {
		id += " from " + t.Local.String()
	}
	if t.Path != "" {
		id += " as " + t.Path
	}
	return path.DetourID(id)
}
