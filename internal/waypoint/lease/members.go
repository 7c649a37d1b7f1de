package lease

import (
	"cmp"
	"maps"
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
	Expelled bool // it may no longer use this waypoint; another host may come under its name

	saved bool // the kernel's table has its id, name and serial
}

// members gives members their ids.
type members struct {
	byName map[string]*Member
	byID   map[rules.MemberID]*Member
	lastID rules.MemberID
	most   int // number of ids
	// before has the ids that earlier agents assigned, by name, of members that have not been seen since.
	before map[string]rules.MemberID
}

func newMembers(most int) *members {
	return &members{most: most, byName: make(map[string]*Member), byID: make(map[rules.MemberID]*Member), before: make(map[string]rules.MemberID)}
}

// get returns the member, with a new id if it has none yet; nil if all ids are taken.
func (m *members) get(name, serial string) *Member {
	if found := m.byName[name]; found != nil {
		if found.Serial != serial {
			found.Serial, found.saved, found.Expelled = serial, false, false
		}
		return found
	}
	if len(m.byID) >= m.most {
		return nil
	}
	id, known := m.before[name]
	if !known || m.byID[id] != nil {
		id = m.free()
	}
	return m.add(rules.Member{ID: id, Name: name, Serial: serial}, false)
}

// free returns an id that no member has. The former id of a member is used only if there is no other, because cookies and
// sockets of the converter may still have it.
func (m *members) free() rules.MemberID {
	if len(m.byID)+len(m.before) >= m.most {
		clear(m.before)
	}
	kept := make(map[rules.MemberID]bool, len(m.before))
	for _, id := range m.before {
		kept[id] = true
	}
	next := func() { m.lastID = m.lastID%rules.MemberID(m.most) + 1 }
	for next(); m.byID[m.lastID] != nil || kept[m.lastID]; next() {
	}
	return m.lastID
}

// remember keeps ids for their members, if these have none yet.
func (m *members) remember(ids map[string]rules.MemberID) {
	for name, id := range ids {
		if id > 0 && int(id) <= m.most && m.byName[name] == nil && m.byID[id] == nil {
			m.before[name] = id
		}
	}
}

// ids returns the ids of members that have been seen, now or before.
func (m *members) ids() map[string]rules.MemberID {
	ids := maps.Clone(m.before)
	for name, member := range m.byName {
		ids[name] = member.ID
	}
	return ids
}

func (m *members) add(who rules.Member, saved bool) *Member {
	delete(m.before, who.Name)
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
