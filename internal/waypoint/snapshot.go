package waypoint

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// Snapshot is what the waypoint does now.
type Snapshot struct {
	Mappings int
	Members  []MemberSnapshot // by name
	Refused  map[wire.Code]uint64
	// InBand is the number of addresses that in-band detours are taken from.
	InBand int
	// SYNs counts those that were authenticated or not; nil where that is not done.
	SYNs *inband.Counters
	// Fast is the number of connections on the fast path; nil where there is none.
	Fast     *int
	Given    GivenSnapshot
	Problems []Problem
	// EventsLost counts how often the kernel dropped events of connections; what was missed is
	// found again, but for the bytes of flows that ended meanwhile.
	EventsLost uint64
}

// MemberSnapshot is what one member uses. Counters begin with the agent.
type MemberSnapshot struct {
	Name, Serial string
	Sessions     int
	Mappings     int
	Tunnels      int // but those of a session that has ended
	Flows        int // connections that are open
	Granted      uint64
	Refused      map[wire.Code]uint64
	// Bytes of IP packets, of open and closed connections.
	BytesFromClient, BytesToClient uint64
}

// MappingSnapshot is one mapping.
type MappingSnapshot struct {
	Member string
	Client netip.Addr
	Port   uint16
	Server netip.AddrPort
	Left   time.Duration
}

// Problem is something the operator should mend.
type Problem struct {
	Code, Text, Mend string
}

type problemCode string

const (
	problemTable  problemCode = "table"
	problemEvents problemCode = "flow-events"
	problemLog    problemCode = "attribution-log"

	problemFilters problemCode = "in-band-filters"
	problemKeys    problemCode = "in-band-keys"

	problemQuota   problemCode = "quota"
	problemMemory  problemCode = "memory"
	problemDamaged problemCode = "memory-damaged"
)

var mends = map[problemCode]string{
	problemTable:   "see which program changes the nftables table dcol (`nft monitor`), and that the agent has CAP_NET_ADMIN",
	problemEvents:  "restart the agent",
	problemFilters: "see that the agent has CAP_BPF and CAP_NET_ADMIN, and which program changes tc filters (`tc monitor`)",
	problemKeys:    "restart the agent",
	problemQuota:   "see which program changes the nftables table dcol (`nft monitor`); without counting, the quota is not held",
	problemMemory:  "free space where state_dir is, and see that the agent can write there",
	problemDamaged: "`dcol waypoint on` gives again",
	problemLog:     "free space on the log's file system, or set [waypoint] log to a file that can be written",
}

type problems map[problemCode]string

func (p problems) set(code problemCode, text string) { p[code] = text }
func (p problems) clear(code problemCode)            { delete(p, code) }

func (p problems) list() []Problem {
	var list []Problem
	for _, code := range slices.Sorted(maps.Keys(p)) {
		list = append(list, Problem{Code: string(code), Text: p[code], Mend: mends[code]})
	}
	return list
}

// Snapshot tells what the waypoint does now.
func (w *Waypoint) Snapshot() (Snapshot, error) {
	// Bytes of open flows are asked for before the owner is: a flow that closes in between is then
	// counted by its end alone.
	counted := make(map[netstate.Tuple]netstate.Flow)
	if err := w.listFlows(func(f netstate.Flow) { counted[f.Origin] = f }); err != nil {
		return Snapshot{}, err
	}
	var s Snapshot
	err := w.ask(func() { s = w.snapshot(counted) })
	return s, err
}

func (w *Waypoint) snapshot(counted map[netstate.Tuple]netstate.Flow) Snapshot {
	s := Snapshot{Mappings: w.index.len(), Refused: make(map[wire.Code]uint64), EventsLost: w.eventsLost,
		InBand: len(w.passes), Given: w.givenSnapshot(time.Now())}
	if w.kernel.receiver != nil {
		if c, err := w.kernel.receiver.Counters(); err == nil {
			s.SYNs = &c
		}
	}
	if w.kernel.fast != nil && !w.kernel.watchOnly {
		n := w.forwarded()
		s.Fast = &n
	}
	tunnels := make(map[*member]int)
	for a, t := range w.tunnels {
		if a.Is4() && !t.left { // each tunnel has one such address
			tunnels[t.member]++
		}
	}
	open := make(map[*member]netstate.Flow)
	for tuple, l := range w.live {
		sum, f := open[l.member], counted[tuple]
		passed := w.passedFast(tuple)
		sum.BytesOrigin += f.BytesOrigin + passed.Origin
		sum.BytesReply += f.BytesReply + passed.Reply
		open[l.member] = sum
	}
	for _, m := range w.members.all() {
		s.Members = append(s.Members, MemberSnapshot{
			Name: m.Name, Serial: m.Serial, Sessions: m.sessions, Mappings: w.index.byMember[m.ID], Tunnels: tunnels[m],
			Flows: m.flows, Granted: m.granted, Refused: maps.Clone(m.refused),
			BytesFromClient: m.bytesFromClient + open[m].BytesOrigin,
			BytesToClient:   m.bytesToClient + open[m].BytesReply,
		})
		for code, n := range m.refused {
			s.Refused[code] += n
		}
	}
	if h := w.record.Health(); h.Err != nil || h.Lost > 0 {
		text := fmt.Sprintf("%d entries were lost", h.Lost)
		if h.Err != nil {
			text = h.Err.Error() + "; " + text
		}
		w.problems.set(problemLog, text)
	}
	s.Problems = w.problems.list()
	return s
}

// Mappings lists the mappings by client and port.
func (w *Waypoint) Mappings() ([]MappingSnapshot, error) {
	var list []MappingSnapshot
	err := w.ask(func() {
		now := time.Now()
		for _, m := range w.index.byKey {
			list = append(list, MappingSnapshot{Member: w.members.of(m.member).Name, Client: m.key.Client,
				Port: m.key.Port, Server: m.server, Left: m.expires.Sub(now)})
		}
	})
	slices.SortFunc(list, func(a, b MappingSnapshot) int {
		return cmp.Or(a.Client.Compare(b.Client), cmp.Compare(a.Port, b.Port))
	})
	return list, err
}
