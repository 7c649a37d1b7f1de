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
	// summariseEvery is how often lines beyond a member's share are summarised in one.
	summariseEvery = 10 * time.Minute
	// maxSummarised bounds how many servers a summary names.
	maxSummarised = 32
)

// shares keeps one member from pushing the record of everybody else's traffic out of the log: each has a number of
// bytes to fill at once, which grow back within shareRefills. What a member causes beyond that is summarised: how many
// lines, and about which servers. Not for concurrent use; it is told the time.
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
	servers map[netip.Addr]int // lines by server; as many as fit
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
	if _, known := m.servers[server]; server.IsValid() && (known || len(m.servers) < maxSummarised) {
		m.servers[server]++
	}
}

// due returns the summaries to write: those that are old enough, or all.
func (s *shares) due(now time.Time, all bool) []Entry {
	var entries []Entry
	for member, x := range s.members {
		if x.summary != nil && (all || now.Sub(x.summary.since) >= summariseEvery) {
			entries = append(entries, x.summary.entry(member, now))
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Member, b.Member) })
	return entries
}

// written is told that summaries stand in the log.
func (s *shares) written(entries []Entry) {
	for _, e := range entries {
		s.members[e.Member].summary = nil
	}
}

func (m *summary) entry(member string, now time.Time) Entry {
	e := Entry{Time: now, Event: EntriesSummarised, Member: member, Serial: m.serial, By: m.by, Opened: m.since, Summarised: m.lines}
	for addr, lines := range m.servers {
		e.Servers = append(e.Servers, ServerLines{addr, lines})
	}
	slices.SortFunc(e.Servers, func(a, b ServerLines) int {
		return cmp.Or(cmp.Compare(b.Lines, a.Lines), a.Server.Compare(b.Server))
	})
	return e
}
