package attribution

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

const (
	// shareRefills is the time in which a used-up share of the log grows back completely.
	shareRefills = 7 * 24 * time.Hour
	// summariseEvery is how often lines beyond a member's share are summarised.
	summariseEvery = 10 * time.Minute
	// maxSummarised is the maximum number of servers in a summary. 512 IPv6 servers take 31 KiB every ten minutes, which is
	// less than a share of DefaultLimits grows back in that time. A member that has used so many may open no more
	// connections until the summary is written.
	maxSummarised = 512
	// serversPerLine keeps the lines of a summary well below maxLine.
	serversPerLine = 256
)

// shares prevents a member from pushing lines about others out of the log. Each member has a share in bytes, which grows
// back within shareRefills. Lines beyond it are summarised: their number, and all servers, so that a member cannot hide a
// server among others. full returns the members whose summaries are full, which the caller must stop from opening
// connections. It gets the time as a parameter, and is not safe for concurrent use.
type shares struct {
	bytes   float64 // of each member; 0: no limit
	members map[string]*share
}

type share struct {
	left    float64 // negative after a batch that was too large
	at      time.Time
	summary *summary // of lines withheld since the last one; nil: none
}

// summary describes lines that are not written.
type summary struct {
	since   time.Time
	serial  string
	by      *Session
	lines   int
	servers map[netip.Addr]int // lines by server
}

func newShares(bytes int64) *shares {
	return &shares{bytes: float64(bytes), members: make(map[string]*share)}
}

func (s *shares) of(member string, now time.Time) *share {
	x := s.members[member]
	if x == nil {
		x = &share{left: s.bytes, at: now}
		s.members[member] = x
	}
	if passed := now.Sub(x.at); passed > 0 {
		x.left = min(s.bytes, x.left+s.bytes*passed.Seconds()/shareRefills.Seconds())
	}
	x.at = now
	return x
}

// sift returns the entries to write, and adds those beyond their members' shares to summaries.
func (s *shares) sift(entries []Entry, now time.Time) []Entry {
	if s.bytes == 0 {
		return entries
	}
	return slices.DeleteFunc(entries, func(e Entry) bool {
		if e.Member == "" || e.Event == MemberExpelled {
			return false
		}
		x := s.of(e.Member, now)
		if x.left > 0 {
			return false
		}
		x.withhold(e, now)
		return true
	})
}

// charge subtracts written bytes from the members' shares.
func (s *shares) charge(bytes map[string]int, now time.Time) {
	if s.bytes == 0 {
		return
	}
	for member, n := range bytes {
		s.of(member, now).left -= float64(n)
	}
}

func (x *share) withhold(e Entry, now time.Time) {
	if x.summary == nil {
		x.summary = &summary{since: now, servers: make(map[netip.Addr]int)}
	}
	m := x.summary
	m.lines++
	m.serial, m.by = e.Serial, cmp.Or(e.By, m.by)
	server := e.Server.Addr()
	// Only servers with a connection that is not in the log already take room.
	if _, known := m.servers[server]; known || e.Event == FlowOpened || e.Event == FlowFound {
		m.servers[server]++
	}
}

// full returns the members whose summaries have no room for more servers, in a stable order.
func (s *shares) full() (members []string) {
	for member, x := range s.members {
		if x.summary != nil && len(x.summary.servers) >= maxSummarised {
			members = append(members, member)
		}
	}
	slices.Sort(members)
	return members
}

// due returns the summaries to write: those that are old enough, or all of them.
func (s *shares) due(now time.Time, all bool) []Entry {
	var entries []Entry
	for member, x := range s.members {
		if x.summary != nil && (all || now.Sub(x.summary.since) >= summariseEvery) {
			entries = append(entries, x.summary.entries(member, now)...)
		}
	}
	slices.SortStableFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Member, b.Member) })
	return entries
}

// written records that summaries were written.
func (s *shares) written(entries []Entry) {
	for _, e := range entries {
		s.members[e.Member].summary = nil
	}
}

// entries returns the summary as entries, with the most frequent servers first. The first entry also counts the lines
// about no server.
func (m *summary) entries(member string, now time.Time) (entries []Entry) {
	var servers []ServerLines
	others := m.lines
	for addr, lines := range m.servers {
		servers = append(servers, ServerLines{addr, lines})
		others -= lines
	}
	slices.SortFunc(servers, func(a, b ServerLines) int {
		return cmp.Or(cmp.Compare(b.Lines, a.Lines), a.Server.Compare(b.Server))
	})
	for first := true; first || len(servers) > 0; first = false {
		e := Entry{Time: now, Event: EntriesSummarised, Member: member, Serial: m.serial, By: m.by, Opened: m.since, Summarised: others}
		n := min(len(servers), serversPerLine)
		e.Servers, servers, others = servers[:n:n], servers[n:], 0
		for _, x := range e.Servers {
			e.Summarised += x.Lines
		}
		entries = append(entries, e)
	}
	return entries
}
