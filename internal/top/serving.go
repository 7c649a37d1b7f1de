package top

import (
	"fmt"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/ui"
)

// The columns of members that use this waypoint.
const (
	mName = iota
	mSessions
	mMappings
	mTunnels
	mConnections
	mCarried
)

func (s *screen) memberTable() table {
	columns := []column{
		mName:        {title: "MEMBER SERVED", width: 14, most: 40},
		mSessions:    {title: "SESSIONS", width: 8, right: true},
		mMappings:    {title: "MAPPINGS", width: 8, right: true},
		mTunnels:     {title: "TUNNELS", width: 7, right: true},
		mConnections: {title: "CONNECTIONS", width: 11, right: true},
		mCarried:     {title: "CARRIED", width: 9, right: true},
	}
	return newTable(columns, []int{mName, mConnections, mCarried, mSessions, mMappings, mTunnels}, s.columns, s.gap(), s.cut)
}

// members fills the given number of rows with the members that use this waypoint. A member that is no client has nothing
// else to show there.
func (s *screen) members(rows int) {
	serving := s.m.feed.status.Serving
	t := s.memberTable()
	s.add(t.header())
	rows--
	list := serving.Members[:min(len(serving.Members), rows)]
	for i := range list {
		m := &list[i]
		number := func(n int) cell { return cell{fmt.Sprint(n), Plain} }
		s.add(t.row([]cell{
			mName: {m.Member, Plain}, mSessions: number(m.Sessions), mMappings: number(m.Mappings), mTunnels: number(m.Tunnels),
			mConnections: number(m.Flows), mCarried: s.bytes(m.Bytes),
		}))
	}
	if len(list) == 0 && rows > 0 {
		s.add(Line{{"No member uses this waypoint now.", Dim}})
		rows--
	}
	for range rows - len(list) {
		s.add(nil)
	}
}

// serves shows what this host does for other members, if it is a waypoint.
func (s *screen) serves() {
	serving := s.m.feed.status.Serving
	if serving == nil || s.rows < leastServing {
		return
	}
	if !serving.Given.Open {
		s.add(Line{{"waypoint closed: ", Warn}, {ui.WhyClosed(serving.Given), Plain}})
		return
	}
	s.add(Line{{"waypoint for ", Dim}, {totals(serving), Plain}})
}

// leastServing is the least number of rows with a line about the waypoint role.
const leastServing = 20

func totals(s *api.Serving) string {
	flows, carried := 0, uint64(0)
	for i := range s.Members {
		flows += s.Members[i].Flows
		carried += s.Members[i].Bytes
	}
	text := fmt.Sprintf("%s: %s, %s, %s carried", ui.Number(len(s.Members), "member", "members"),
		ui.Number(flows, "connection", "connections"), ui.Number(s.Mappings, "mapping", "mappings"), ui.Bytes(carried))
	refused := 0
	for _, n := range s.Refused {
		refused += n
	}
	if refused > 0 {
		text += fmt.Sprintf("; %d refused", refused)
	}
	return text
}
