package path

import (
	"fmt"

	"github.com/detour-collective/dcol/internal/path/budget"
)

// Note is the reason why a connection has too few detours, or none. The zero value means that there is nothing to say.
type Note struct {
	Code NoteCode
	Text string
	// Budget is the budget that is used up, for NoteBudget.
	Budget budget.Scope
}

// NoteCode is the meaning of a Note as a stable word, for programs.
type NoteCode string

const (
	// NoteThisHost means that the server is this host.
	NoteThisHost NoteCode = "this-host"
	// NoteLinkLocal means that no waypoint can reach the server's link-local address.
	NoteLinkLocal NoteCode = "link-local"
	// NoteExcluded means that the server is in Config.Exclude.
	NoteExcluded NoteCode = "excluded"
	// NoteWasExcluded means that the server was in Config.Exclude when the connection began.
	NoteWasExcluded NoteCode = "was-excluded"
	// NoteSpared means that the program wants no detours.
	NoteSpared NoteCode = "spared"
	// NoteTunnelEnd means that the server is the other end of a tunnel.
	NoteTunnelEnd NoteCode = "tunnel-end"
	// NoteKernel means that the kernel manages the paths itself.
	NoteKernel NoteCode = "kernel"
	// NoteHalfClosed means that an end has closed its direction.
	NoteHalfClosed NoteCode = "half-closed"
	// NoteAbandoned means that the connection has had no path for so long that the kernel ends it.
	NoteAbandoned NoteCode = "abandoned"
	// NoteServerDenies means that the server allows no further subflow to its address.
	NoteServerDenies NoteCode = "server-denies"
	// NoteServerLimit means that the server accepts no more subflows.
	NoteServerLimit NoteCode = "server-limit"
	// NoteFirstData means that detours wait for the server's first data.
	NoteFirstData NoteCode = "first-data"
	// NoteGrowth means that the policy opens further subflows later.
	NoteGrowth NoteCode = "growth"
	// NoteTries means that the connection tries out waypoints, and may have one more subflow than its policy allows meanwhile.
	NoteTries NoteCode = "tries-waypoints"
	// NoteQuota means that the quota of a path is used up.
	NoteQuota NoteCode = "quota"
	// NoteLossy means that the only detour loses too much.
	NoteLossy NoteCode = "lossy"
	// NoteBudget means that a budget of bytes is used up.
	NoteBudget NoteCode = "budget"
	// NoteLimited means that the policy limits the rate of a path to 0.
	NoteLimited NoteCode = "limited"
	// NotePathsDown means that the other paths of the policy do not work now.
	NotePathsDown NoteCode = "paths-down"
	// NoteNoDetour means that no detour leads to the server now.
	NoteNoDetour NoteCode = "no-detour"
	// NoteNoAddress means that this host has no address of the server's family.
	NoteNoAddress NoteCode = "no-address"
)

// note returns what there is to say about a connection.
func (m *Manager) note(t turn) Note {
	switch {
	case t.isExcluded():
		return m.exclusionNote(t.excluded, t.remote.Addr())
	case t.refused:
		return Note{Code: NoteKernel, Text: "the kernel manages its paths itself"}
	case t.halfClosed:
		return Note{Code: NoteHalfClosed, Text: "an end has closed its direction, so the kernel opens no more subflows"}
	case t.abandoned(m.cfg.Inactivity):
		return Note{Code: NoteAbandoned, Text: fmt.Sprintf("it had no path for %v, so the kernel ends it", m.cfg.Inactivity)}
	case t.denied():
		return Note{Code: NoteServerDenies, Text: "the server allows no further subflow to its address"}
	case t.waits():
		return Note{Code: NoteFirstData, Text: "detour waits for the server's first data"}
	case t.now.Before(t.room.at) && !t.screensBeside(): // an extra detour is not missing
		return Note{Code: NoteServerLimit, Text: "the server takes no further subflow now"}
	case t.growth != nil:
		return Note{Code: NoteGrowth, Text: "further subflows are opened later"}
	case t.capped:
		return Note{Code: NoteServerLimit, Text: m.places.note(t)}
	}
	if quota := m.detours.spending.note(t.rule, t.now); quota != "" {
		return Note{Code: NoteQuota, Text: quota}
	}
	if t.screensBeside() {
		return Note{Code: NoteTries, Text: "it tries waypoints, and has one more subflow meanwhile"}
	}
	if t.isShort() {
		return m.shortNote(t)
	}
	return Note{}
}

// shortNote returns why a connection has fewer subflows than its policy wants.
func (m *Manager) shortNote(t turn) Note {
	if t.has(func(s *subflow) bool { return s.detour != nil && s.isLossy() }) {
		return Note{Code: NoteLossy, Text: "its detour loses too much to carry data, and no other is at hand"}
	}
	if b := m.spentFor(t); b.Level() == budget.Spent {
		return Note{Code: NoteBudget, Text: SpentWords(b), Budget: b.Scope}
	}
	closed := m.detours.spending.closedNote(t.rule, t.now)
	switch {
	case closed != "":
		return Note{Code: NoteLimited, Text: closed}
	case t.rule.Name != "":
		return Note{Code: NotePathsDown, Text: "other paths do not work now"}
	default:
		return Note{Code: NoteNoDetour, Text: "no detour to this server is at hand"}
	}
}
