package waypoint

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Config holds the operator's decisions, and the functions with which the waypoint reports changes.
type Config struct {
	Allow, Deny []netip.Prefix // see egress.New
	DenyPorts   []uint16

	MappingsPerMember    int
	ConnectionsPerMember int                    // 0: no limit
	RatePerMember        int                    // new connections per second; 0: no limit
	BandwidthPerMember   int64                  // bytes per second, both directions together; 0: no limit
	Bandwidth            int64                  // bytes per second of all members together, in each direction; 0: no limit
	Quota                uint64                 // bytes in a month of all members together, both directions; 0: no quota
	Hours                giving.Hours           // when connections may be opened
	Members              map[string]MemberTerms // further limits of single members, by name
	MappingLifetime      time.Duration
	InBand               InBandMode
	// Converter is the converter on this host; nil: there is none.
	Converter *Converter
	// TellIncoming is called with the ports at which the converter is to take connections for members, before Start returns
	// and after each change. It must not block, nor call the waypoint. It may be nil.
	TellIncoming func([]Incoming)
	// PortUnusable reports whether the converter cannot listen at a port for a member. It must not block. If nil, every port
	// can be used.
	PortUnusable func(port uint16, member string) bool
	// FastPath lets packets of established mapped and in-band detours bypass netfilter, unless a limit of
	// bandwidth or a quota must see each packet.
	FastPath bool

	Log    string // file of the attribution log
	Author attribution.Author
	Record string // file that remembers the sysctls we changed
	Memory string // file that remembers SwitchOff and the used part of the quota
	// Counts is a file for the bytes that the fast path has carried of connections that outlive the agent.
	// It should be in a folder that a reboot empties, because the connections end then, too.
	Counts string

	// Marks are the bits of packet and connection marks that are ours; 0: rules.DefaultMarks.
	Marks rules.Marks
	// Outside delivers this host's external addresses, now and after each change; nil: they are not known.
	Outside <-chan egress.Outside

	// Tell is called with the waypoint's standing, open or closed, before Start returns and after each change.
	// It must not block, nor call the waypoint. It may be nil.
	Tell func(giving.Standing)
	// TellLoad is called when the waypoint's load changes: with the time until which it is loaded, and the rate that one more
	// member would get, in bits a second. A zero time means that it is no longer loaded. A zero rate is unknown. TellLoad must
	// not block, nor call the waypoint. It may be nil.
	TellLoad func(until time.Time, gives float64)
}

// MemberTerms limit one member, within the limits of all members.
type MemberTerms struct {
	Servers egress.Narrowing // if it limits anything, the member gets mapped detours only
	Hours   giving.Hours     // when the member may open connections
	Quota   uint64           // bytes in a month, both directions; 0: no quota
}

// Converter describes the converter on this host: its ports, and the key of the cookies by which members prove their
// membership to it.
type Converter struct {
	Port uint16 // of TCP
	Key  cookie.Key
	// Incoming are the ports that members may request for connections to services of theirs.
	Incoming []uint16
}

// Incoming is a port at which the converter takes connections for a member.
type Incoming struct {
	lease.Port
	Mark uint32 // of the converter's connections to the member
}

// everyPacket reports whether there is a rule that must see every packet.
func (c Config) everyPacket() bool { return c.BandwidthPerMember > 0 || c.Bandwidth > 0 || c.Quota > 0 }

func (c Config) options() rules.Options {
	o := rules.Options{Marks: c.marks(), Connections: c.ConnectionsPerMember, Rate: c.RatePerMember, Bandwidth: c.BandwidthPerMember,
		Total: c.Bandwidth, Quota: c.Quota, InBand: c.InBand}
	if c.Converter != nil {
		o.Converter = c.Converter.Port
	}
	return o
}

func (c Config) marks() rules.Marks {
	if c.Marks == 0 {
		return rules.DefaultMarks
	}
	return c.Marks
}

func (c Config) terms() lease.Terms {
	t := lease.Terms{MappingsPerMember: c.MappingsPerMember, Lifetime: c.MappingLifetime, InBand: c.InBand, Marks: c.marks()}
	if c.Converter != nil {
		t.Incoming = c.Converter.Incoming
	}
	return t
}

func (c Config) deniedPorts() []uint16 {
	return slices.Compact(slices.Sorted(slices.Values(c.DenyPorts)))
}
