package lease

import (
	"cmp"
	"slices"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Member is a member of the collective to which this waypoint has given an id.
type Member struct {
	rules.Member
	Sessions int
	Granted  uint64
	Refused  map[wire.Code]uint64

	saved bool // the kernel's table has its id, name and serial
}

// members gives members their ids.
type members struct {
	byName map[string]*Member
	byID   map[rules.MemberID]*Member
	lastID rules.MemberID
	most   int // ids there are
}

func newMembers(most int) *members {
	return &members{most: most, byName: make(map[string]*Member), byID: make(map[rules.MemberID]*Member)}
}

// get returns the member, with a new id if it has none yet; nil if all ids are taken.
func (m *members) get(name, serial string) *Member {
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

func (m *members) add(who rules.Member, saved bool) *Member {
	added := &Member{Member: who, saved: saved, Refused: make(map[wire.Code]uint64)}
	m.byName[who.Name] = added
	m.byID[who.ID] = added
	return added
}

// adopt adds the members of the kernel's table that are not known yet.
func (m *members) adopt(list []rules.Member) {
	for _, who := range list {
		if int(who.ID) <= m.most && m.byID[who.ID] == nil && m.byName[who.Name] == nil {
			m.add(who, true)
			m.lastID = max(m.lastID, who.ID)
		}
	}
}

// of returns the member with the id, or a stand-in if nobody has it: the table was changed by hand.
func (m *members) of(id rules.MemberID) *Member {
	if found := m.byID[id]; found != nil {
		return found
	}
	return &Member{Member: rules.Member{ID: id, Name: "unknown"}, Refused: make(map[wire.Code]uint64)}
}

// all returns the members, sorted by name.
func (m *members) all() []*Member {
	list := make([]*Member, 0, len(m.byName))
	for _, x := range m.byName {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b *Member) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
