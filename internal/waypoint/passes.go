package waypoint

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// pass is a session's leave to send SYNs that name their server, from where the session comes from.
type pass struct {
	presence
	session    uint64 // 0: of an agent before us
	by         *attribution.Session
	key        inband.Key
	clientPort bool // the port is the client's own, so that it is authenticated too
	expires    time.Time
}

// passes mirrors whom the kernel lets send such SYNs. By address, the oldest first.
type passes map[netip.Addr][]*pass

func (x passes) add(p *pass) { x[p.addr] = append(x[p.addr], p) }

// take removes passes and returns the presences that they were of, with one of their sessions.
func (x passes) take(which func(*pass) bool) map[presence]*attribution.Session {
	touched := make(map[presence]*attribution.Session)
	for addr := range x {
		x.takeAt(addr, which, touched)
	}
	return touched
}

func (x passes) takeAt(addr netip.Addr, which func(*pass) bool, touched map[presence]*attribution.Session) {
	for _, p := range x[addr] {
		if which(p) {
			touched[p.presence] = p.by
		}
	}
	if x[addr] = slices.DeleteFunc(x[addr], which); len(x[addr]) == 0 {
		delete(x, addr)
	}
}

// superseded lists the passes of a session that its next one makes needless.
func (x passes) superseded(addr netip.Addr, session uint64) []*pass {
	var list []*pass
	for _, p := range x[addr] {
		if p.session == session {
			list = append(list, p)
		}
	}
	return list[:max(0, len(list)-(keysPerSession-1))]
}

// by is the session of the newest pass of a presence.
func (x passes) by(at presence) (newest *attribution.Session) {
	for _, p := range x[at.addr] {
		if p.member == at.member && p.by != nil {
			newest = p.by
		}
	}
	return newest
}

// until is when the last pass of a presence ends; zero if it has none.
func (x passes) until(at presence) (end time.Time) {
	for _, p := range x[at.addr] {
		if p.member == at.member && p.expires.After(end) {
			end = p.expires
		}
	}
	return end
}

// admission is a presence as the kernel's table has it.
func (x passes) admission(at presence, now time.Time) rules.Admission {
	return rules.Admission{Addr: at.addr, Kind: wire.InBand, Member: at.member.ID, Left: x.until(at).Sub(now)}
}

// presences are those that have passes.
func (x passes) presences() map[presence]bool {
	all := make(map[presence]bool)
	for _, at := range x {
		for _, p := range at {
			all[p.presence] = true
		}
	}
	return all
}

// slots are the keys for an address as eBPF has them. Passes of an agent before us may have none.
func (x passes) slots(addr netip.Addr, m rules.Marks) []inband.Slot {
	var slots []inband.Slot
	for _, p := range x[addr] {
		if p.key != (inband.Key{}) {
			slots = append(slots, inband.Slot{Key: p.key, Mark: m.Mark(p.member.ID, wire.InBand), ClientPort: p.clientPort, Expires: p.expires})
		}
	}
	return slots
}
