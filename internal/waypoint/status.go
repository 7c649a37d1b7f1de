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
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
)

// Snapshot describes the state of the waypoint at one moment.
type Snapshot struct {
	Mappings int
	Members  []MemberSnapshot // by name
	Refused  map[wire.Code]uint64
	// InBand is the number of addresses from which in-band SYNs are accepted.
	InBand int
	// SYNs counts accepted and rejected SYNs; nil if they are not authenticated.
	SYNs *inband.Counters
	// Fast is the number of connections on the fast path; nil if there is no fast path.
	Fast     *int
	Giving   GivingStatus
	Limited  []LimitedSnapshot // by name
	Problems []Problem
	// EventsLost counts how often the kernel dropped events of connections. The waypoint then lists all
	// connections again. Only the bytes of those that ended meanwhile are lost.
	EventsLost uint64
}

// MemberSnapshot describes one member's use. Counters begin with the agent.
type MemberSnapshot struct {
	Name, Serial string
	Expelled     bool // or has left; its counters remain
	Sessions     int
	Mappings     int
	Tunnels      int // without those of a session that has ended
	Flows        int // connections that are open
	Granted      uint64
	Refused      map[wire.Code]uint64
	// Bytes of IP packets, of open and closed connections.
	BytesFromClient, BytesToClient uint64
}

// LimitedSnapshot describes what holds for a member with terms of its own, and what it has used in this month.
type LimitedSnapshot struct {
	Name string
	MemberTerms
	Used     uint64 // bytes, as counted last; not counted without a quota
	Standing giving.Standing
}

// MappingSnapshot is one mapping.
type MappingSnapshot struct {
	Member string
	Client netip.Addr
	Port   uint16
	Server netip.AddrPort
	Left   time.Duration
}

// Problem describes a problem, and how the operator can fix it.
type Problem struct {
	Code, Text, Fix string
}

type problemCode string

const (
	problemTable  problemCode = "table"
	problemEvents problemCode = "flow-events"
	problemLog    problemCode = "attribution-log"

	problemFilters problemCode = "in-band-filters"
	problemKeys    problemCode = "in-band-keys"

	problemQuota   problemCode = "quota"
	problemMembers problemCode = "members-quotas"
	problemMemory  problemCode = "memory"
	problemDamaged problemCode = "memory-damaged"
)

var fixes = map[problemCode]string{
	problemTable:   "find the program that changes the nftables table dcol (`nft monitor`), and check that the agent has CAP_NET_ADMIN",
	problemEvents:  "restart the agent",
	problemFilters: "check that the agent has CAP_BPF and CAP_NET_ADMIN, and find the program that changes tc filters (`tc monitor`)",
	problemKeys:    "restart the agent",
	problemQuota:   "find the program that changes the nftables table dcol (`nft monitor`); without counting, the quota is not enforced",
	problemMembers: "check that the agent has CAP_NET_ADMIN; without counting, members' own quotas are not enforced",
	problemMemory:  "free space on the file system of state_dir, and check that the agent can write there",
	problemDamaged: "`dcol waypoint on` opens the waypoint",
	problemLog:     "free space on the log's file system, or set [waypoint] log to a file that can be written",
}

type problems map[problemCode]string

func (p problems) set(code problemCode, text string) { p[code] = text }
func (p problems) clear(code problemCode)            { delete(p, code) }

func (p problems) list() []Problem {
	var list []Problem
	for _, code := range slices.Sorted(maps.Keys(p)) {
		list = append(list, Problem{Code: string(code), Text: p[code], Fix: fixes[code]})
	}
	return list
}

// Snapshot returns the present state of the waypoint.
func (w *Waypoint) Snapshot() (Snapshot, error) {
	// Read the bytes of open connections before asking the loop. So a connection that closes in between is
	// counted once, by its end.
	counted, err := w.loop.connections.counted()
	if err != nil {
		return Snapshot{}, err
	}
	var s Snapshot
	err = w.ask(func() { s = w.loop.snapshot(counted) })
	return s, err
}

// Policy returns the policy on servers, with this host's present addresses and neighbours.
func (w *Waypoint) Policy() (policy *egress.Policy, err error) {
	err = w.ask(func() { policy = w.loop.surroundings.policy })
	return policy, err
}

func (l *loop) snapshot(counted map[netstate.Tuple]netstate.Flow) Snapshot {
	now := time.Now()
	s := Snapshot{Refused: make(map[wire.Code]uint64), EventsLost: l.connections.eventsLost,
		InBand: l.leases.InBandAddresses(), Giving: l.giver.status(now), Limited: l.limited.snapshot(now)}
	if l.kernel.receiver != nil {
		if c, err := l.kernel.receiver.Counters(); err == nil {
			s.SYNs = &c
		}
	}
	if l.kernel.fast != nil && !l.kernel.watchOnly {
		n := l.connections.flows.CountForwarded()
		s.Fast = &n
	}
	usage, held := l.connections.usage(counted), l.leases.Held()
	for _, m := range l.leases.Members() {
		used, holds := usage[m.ID], held[m.ID]
		s.Members = append(s.Members, MemberSnapshot{
			Name: m.Name, Serial: m.Serial, Expelled: m.Expelled, Sessions: m.Sessions, Mappings: holds.Mappings, Tunnels: holds.Tunnels,
			Flows: used.Open, Granted: m.Granted, Refused: maps.Clone(m.Refused),
			BytesFromClient: used.BytesFromClient, BytesToClient: used.BytesToClient,
		})
		for code, n := range m.Refused {
			s.Refused[code] += n
		}
	}
	for _, h := range held {
		s.Mappings += h.Mappings
	}
	if h := l.record.Health(); h.Err != nil || h.Lost > 0 {
		text := fmt.Sprintf("%d entries were lost", h.Lost)
		if h.Err != nil {
			text = h.Err.Error() + "; " + text
		}
		l.problems.set(problemLog, text)
	}
	s.Problems = l.problems.list()
	return s
}

// Mappings lists the mappings by client and port.
func (w *Waypoint) Mappings() ([]MappingSnapshot, error) {
	var list []MappingSnapshot
	err := w.ask(func() {
		for _, m := range w.loop.leases.Mappings(time.Now()) {
			list = append(list, MappingSnapshot{Member: w.loop.leases.Member(m.Member).Name, Client: m.Client,
				Port: m.Port, Server: m.Server, Left: m.Left})
		}
	})
	slices.SortFunc(list, func(a, b MappingSnapshot) int {
		return cmp.Or(a.Client.Compare(b.Client), cmp.Compare(a.Port, b.Port))
	})
	return list, err
}
