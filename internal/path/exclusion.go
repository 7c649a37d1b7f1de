package path

import (
	"fmt"
	"net/netip"
	"slices"
)

// exclusion is the reason why a connection gets no detours, found when it begins.
type exclusion uint8

const (
	notExcluded exclusion = iota
	excludedOwn           // its server is this host
	excludedLinkLocal
	excludedListed // its server is in Config.Exclude
	excludedSpared // its program wants that; see Spare
	excludedTunnel // its server is the other end of a tunnel, which no detour reaches
)

// exclusion returns why connections to a server get no detours.
func (m *Manager) exclusion(server netip.Addr) exclusion {
	switch {
	case server.IsLoopback(), slices.Contains(m.host.addrs, server):
		return excludedOwn
	case server.IsLinkLocalUnicast():
		return excludedLinkLocal
	case m.listed(server).IsValid():
		return excludedListed
	default:
		return notExcluded
	}
}

// listed returns the first prefix in Config.Exclude that contains the server, or the zero Prefix.
func (m *Manager) listed(server netip.Addr) netip.Prefix {
	i := slices.IndexFunc(m.cfg.Exclude, func(p netip.Prefix) bool { return p.Contains(server) })
	if i < 0 {
		return netip.Prefix{}
	}
	return m.cfg.Exclude[i]
}

// Excludes reports whether connections to an address get no detours.
func (m *Manager) Excludes(server netip.Addr) bool { return m.exclusion(server) != notExcluded }

// exclusionNote returns why a connection to a server gets no detours.
func (m *Manager) exclusionNote(x exclusion, server netip.Addr) Note {
	switch x {
	case excludedOwn:
		return Note{Code: NoteThisHost, Text: fmt.Sprintf("%v is this host", server)}
	case excludedLinkLocal:
		return Note{Code: NoteLinkLocal, Text: fmt.Sprintf("%v is a link-local address, which no waypoint can reach", server)}
	case excludedSpared:
		return Note{Code: NoteSpared, Text: "the program that opened it wants no detours"}
	case excludedTunnel:
		return Note{Code: NoteTunnelEnd, Text: fmt.Sprintf("%v is the other end of a tunnel", server)}
	case excludedListed:
		if entry := m.listed(server); entry.IsValid() {
			return Note{Code: NoteExcluded, Text: fmt.Sprintf("%v is in client.exclude (%v)", server, entry)}
		}
		return Note{Code: NoteWasExcluded, Text: fmt.Sprintf("%v was in client.exclude when the connection began", server)}
	default:
		return Note{}
	}
}
