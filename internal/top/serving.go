package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/ui"
)

// The columns of members that use this waypoint.
const (
	mName = iota
	mRate
	mTrend
	mSessions
	mMappings
	mTunnels
	mConnections
	mCarried
)

func (s *screen) memberTable() table {
	columns := []column{
		mName:        {title: "MEMBER SERVED", width: 14, most: 40},
		mRate:        s.rateColumn("RATE"),
		mTrend:       {title: "TREND", width: 8, most: 24},
		mSessions:    {title: "SESSIONS", width: 8, right: true},
		mMappings:    {title: "MAPPINGS", width: 8, right: true},
		mTunnels:     {title: "TUNNELS", width: 7, right: true},
		mConnections: {title: "CONNECTIONS", width: 11, right: true},
		mCarried:     {title: "CARRIED", width: 9, right: true},
	}
	return newTable(columns, []int{mName, mRate, mConnections, mCarried, mTrend, mSessions, mMappings, mTunnels}, s.columns, s.gap(), s.cut)
}

// members fills the given number of rows with the members that use this waypoint. A member that is no client has nothing
// else to show there.
func (s *screen) members(rows int) {
	serving := s.m.feed.status.Serving
	t := s.memberTable()
	rows--
	var list []*api.Served // the busiest first
	for i := range serving.Members {
		if m := &serving.Members[i]; !m.Expelled {
			list = append(list, m)
		}
	}
	level := func(m *api.Served) float64 { // rows would change places all the time if they were sorted by the rate itself
		return math.Floor(2 * math.Log10(max(s.m.feed.served[m.Member].mean(lately), quiet)))
	}
	slices.SortStableFunc(list, func(a, b *api.Served) int { return cmp.Compare(level(b), level(a)) })
	s.add(t.header(max(len(list)-rows, 0)))
	list = list[:min(len(list), rows)]
	for _, m := range list {
		h := s.m.feed.served[m.Member]
		number := func(n int) cell { return cell{fmt.Sprint(n), Plain} }
		s.add(t.row([]cell{
			mName: {m.Member, Plain}, mRate: s.rate(h.last(0)), mTrend: {h.spark(t.widths[mTrend], s.bars), Accent}, mSessions: number(m.Sessions), mMappings: number(m.Mappings), mTunnels: number(m.Tunnels),
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
	line := Line{{"waypoint for ", Dim}, {totals(serving), Plain}}
	if s.m.feed.status.Client != nil { // otherwise the header has it
		line = slices.Insert(line, 0, Span{"forwards ", Dim}, Span{ui.Rate(s.m.feed.forwarded.last(0)), Plain}, Span{", ", Dim})
	}
	s.add(line)
}

// forwards shows the rate at which a host that is no client forwards for members.
func (s *screen) forwards() {
	h := &s.m.feed.forwarded
	line := Line{{"forwards ", Dim}, {fit(ui.Rate(h.last(0)), 13, true, ""), Plain}}
	if chart := min(s.columns-24, samples); chart > 0 {
		line = append(line, Span{" " + h.spark(chart, s.bars), Accent})
	}
	s.add(line)
}

// leastServing is the least number of rows with a line about the waypoint role.
const leastServing = 20

func totals(s *api.Serving) string {
	flows, present, carried := 0, 0, uint64(0)
	for i := range s.Members {
		flows += s.Members[i].Flows
		carried += s.Members[i].Bytes
		if s.Members[i].Present() {
			present++
		}
	}
	text := fmt.Sprintf("%s: %s, %s, %s carried", ui.Number(present, "member", "members"),
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
