package attribution

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

const (
	// shareRefills is how long it takes for a member's share of the log to be whole again that was used up.
	shareRefills = 7 * 24 * time.Hour
	// summariseEvery is how often lines beyond a member's share are summarised.
	summariseEvery = 10 * time.Minute
	// maxSummarised is how many servers a summary has room for: 512 of IPv6 are 31 KiB every ten minutes, which is less
	// than grows back of a share of DefaultLimits. A member that has called so many may open no more connections until the
	// summary is written.
	maxSummarised = 512
	// serversPerLine keeps the lines of a summary well below maxLine.
	serversPerLine = 256
)

// shares keeps one member from pushing the record of everybody else's traffic out of the log: each has a number of
// bytes to fill at once, which grow back within shareRefills. What a member causes beyond that is summarised: how many
// lines, and all servers that it called, none of which it can hide behind others: members whose summaries are full are
// listed, for whoever can keep them from opening connections. Not for concurrent use; it is told the time.
type shares struct {
	bytes   float64 // of each member; 0: no bound
	members map[string]*share
}

type share struct {
	left    float64 // less than nothing after a batch that was too large
	at      time.Time
	summary *summary // of what was withheld since the last; nil: nothing was
}

// summary is what stands in the log in place of lines.
type summary struct {
	since   time.Time
	serial  string
	by      *Session
	lines   int
	servers map[netip.Addr]int // lines by server that was called
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

// sift returns the entries to write, and takes note of those that are beyond their members' shares.
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

// charge takes what was written from the members' shares.
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
	// A server that was asked for and not called takes no room, nor does one whose call stands in the log already.
	if _, known := m.servers[server]; known || e.Event == FlowOpened || e.Event == FlowFound {
		m.servers[server]++
	}
}

// full lists the members whose summaries have no room for more servers. The list is the same whenever they are.
func (s *shares) full() (members []string) {
	for member, x := range s.members {
		if x.summary != nil && len(x.summary.servers) >= maxSummarised {
			members = append(members, member)
		}
	}
	slices.Sort(members)
	return members
}

// due returns the summaries to write: those that are old enough, or all.
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

// written notes that summaries stand in the log.
func (s *shares) written(entries []Entry) {
	for _, e := range entries {
		s.members[e.Member].summary = nil
	}
}

// entries are as many as the servers take, the most frequent first. The first one counts the lines that were about none
// of them, too.
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
