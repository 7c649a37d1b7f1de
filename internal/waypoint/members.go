package waypoint

import (
	"cmp"
	"slices"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// member is what is known of one, by its name in the collective.
type member struct {
	rules.Member
	saved bool // the kernel knows its id, name and serial

	sessions int
	flows    int // live now
	granted  uint64
	refused  map[wire.Code]uint64
	// Bytes of flows that are closed.
	bytesFromClient, bytesToClient uint64
}

// members gives members their ids.
type members struct {
	byName map[string]*member
	byID   map[rules.MemberID]*member
	lastID rules.MemberID
	most   int // ids there are
}

func newMembers(most int) *members {
	return &members{most: most, byName: make(map[string]*member), byID: make(map[rules.MemberID]*member)}
}

// known returns the member, or nil if it has no id yet.
func (m *members) known(name string) *member { return m.byName[name] }

// get returns the member, with a new id if it has none yet; nil if all ids are taken.
func (m *members) get(name, serial string) *member {
	if found := m.byName[name]; found != nil {
		if found.Serial != serial {
			found.Serial, found.saved = serial, false
		}
		return found
	}
	if len(m.byID) >= m.most {
		return nil
	}
	next := func() { m.lastID = m.lastID%rules.MemberID(m.most) + 1 }
	for next(); m.byID[m.lastID] != nil; next() {
	}
	return m.add(rules.Member{ID: m.lastID, Name: name, Serial: serial}, false)
}

func (m *members) add(who rules.Member, saved bool) *member {
	added := &member{Member: who, saved: saved, refused: make(map[wire.Code]uint64)}
	m.byName[who.Name] = added
	m.byID[who.ID] = added
	return added
}

// of returns the member with the id; a stand-in if nobody has it (the table was changed by hand).
func (m *members) of(id rules.MemberID) *member {
	if found := m.byID[id]; found != nil {
		return found
	}
	return &member{Member: rules.Member{ID: id, Name: "unknown"}, refused: make(map[wire.Code]uint64)}
}

// all is sorted by name.
func (m *members) all() []*member {
	list := make([]*member, 0, len(m.byName))
	for _, x := range m.byName {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b *member) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
