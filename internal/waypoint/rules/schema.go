package rules

import (
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// table is the only nftables table that this package changes.
var table = nft.Table{Name: "dcol"}

// schemaVersion counts changes of the table's shape. Options are part of the rules, so they are part
// of the fingerprint too.
const schemaVersion = 15

// fingerprint returns the comment of the set of members: the schema's version, marks, connections, rate, bandwidth, total,
// quota, mode and the converter's port. It is short, because nft accepts at most 128 characters.
func fingerprint(o Options) string {
	return fmt.Sprintf("dcol schema %d: m%x c%d r%d b%d t%d q%d %v %d",
		schemaVersion, uint32(o.Marks), o.Connections, o.Rate, o.Bandwidth, o.Total, o.Quota, o.InBand, o.Converter)
}

// schema is the table without its elements, both for the kernel and as text.
type schema struct {
	options   Options
	sets      []nft.Set
	chains    []chain
	members   nft.Set
	ports     nft.Set // that are forbidden
	inBand    inBandSets
	tunnelIfs nft.Set
	closed    nft.Set // the bit that all our marks have, if no connection is to be opened
	stopped   nft.Set // the bits of members that are to open no connection
	converted nft.Set // if there is a converter: mark of its sockets to the chain that marks their connections
	awaited   nft.Set // if there is a converter: marks of its sockets for members whose leases are awaited
	four, six family
}

// family holds the parts of the table that exist for IPv4 and for IPv6.
type family struct {
	name      string // in nft's words
	proto     string // as meta nfproto names it
	nfproto   byte
	addr      nft.Type
	source    uint32  // offset of the source address in the header
	dest      uint32  // offset of the destination address
	servers   nft.Set // (client address, port) to (server address, port)
	marks     nft.Set // (client address, port) to the chain that marks the connection as the member's
	tunnels   nft.Set // address in a tunnel to such a chain
	forbidden nft.Set // ranges of servers
	guarded   nft.Set // interfaces
}

// inBandSets exist if the mode is not off. Of open and keyed, only the one of the mode exists.
type inBandSets struct {
	open      nft.Set // client address to such a chain
	keyed     nft.Set // (client address, mark) to such a chain
	forbidden nft.Set // as the family's, in the type that nft compares with TCP options
}

type chain struct {
	name    string
	comment string
	header  string // in nft's words; empty for a chain that is not hooked
	hook    *nft.Hook
	rules   []rule
}

type rule struct {
	text  string
	exprs []expr.Any
}

func newSchema(o Options) *schema {
	if o.Marks == 0 {
		o.Marks = DefaultMarks
	}
	s := &schema{
		options:   o,
		members:   nft.Set{Name: "members", Key: []nft.Type{nft.Mark}, Comment: fingerprint(o)},
		ports:     nft.Set{Name: "forbidden_ports", Key: []nft.Type{nft.InetService}},
		tunnelIfs: nft.Set{Name: "tunnel_interfaces", Key: []nft.Type{nft.IfName}},
		closed:    nft.Set{Name: "closed", Key: []nft.Type{nft.Mark}},
		stopped:   nft.Set{Name: "stopped", Key: []nft.Type{nft.Mark}},
		converted: nft.Set{Name: "converted", Key: []nft.Type{nft.Mark}, Data: []nft.Type{nft.Verdict}, Timeout: true},
		awaited:   nft.Set{Name: "awaited", Key: []nft.Type{nft.Mark}, Timeout: true},
		inBand: inBandSets{
			open:      nft.Set{Name: "inband4", Key: []nft.Type{nft.IPv4Addr}, Data: []nft.Type{nft.Verdict}, Timeout: true},
			keyed:     nft.Set{Name: "inband_keyed4", Key: []nft.Type{nft.IPv4Addr, nft.Mark}, Data: []nft.Type{nft.Verdict}, Timeout: true},
			forbidden: nft.Set{Name: "inband_forbidden4", Key: []nft.Type{nft.Word}, Interval: true},
		},
		four: newFamily(family{name: "ip", proto: "ipv4", nfproto: unix.NFPROTO_IPV4, addr: nft.IPv4Addr, source: 12, dest: 16}, "4"),
		six:  newFamily(family{name: "ip6", proto: "ipv6", nfproto: unix.NFPROTO_IPV6, addr: nft.IPv6Addr, source: 8, dest: 24}, "6"),
	}
	for _, f := range []family{s.four, s.six} {
		s.sets = append(s.sets, f.servers, f.marks, f.tunnels, f.forbidden, f.guarded)
	}
	s.sets = append(s.sets, s.members, s.ports, s.tunnelIfs, s.closed, s.stopped)
	if o.Converter > 0 {
		s.sets = append(s.sets, s.converted, s.awaited)
	}
	switch o.InBand {
	case InBandOpen:
		s.sets = append(s.sets, s.inBand.open, s.inBand.forbidden)
	case InBandAuthenticated:
		s.sets = append(s.sets, s.inBand.keyed, s.inBand.forbidden)
	case InBandOff:
	}
	s.chains = append(s.arriving(), s.leaving()...)
	return s
}

// newFamily names the sets. A single map could yield the server and the mark together, because registers hold any data. But
// nft's syntax cannot express it, and every `nft list ruleset` would print an error.
func newFamily(f family, suffix string) family {
	key := []nft.Type{f.addr, nft.InetService}
	f.servers = nft.Set{Name: "servers" + suffix, Key: key, Data: key, Timeout: true}
	f.marks = nft.Set{Name: "marks" + suffix, Key: key, Data: []nft.Type{nft.Verdict}, Timeout: true}
	f.tunnels = nft.Set{Name: "tunnels" + suffix, Key: []nft.Type{f.addr}, Data: []nft.Type{nft.Verdict}, Timeout: true}
	f.forbidden = nft.Set{Name: "forbidden" + suffix, Key: []nft.Type{f.addr}, Interval: true}
	f.guarded = nft.Set{Name: "guarded" + suffix, Key: []nft.Type{nft.IfName}}
	return f
}

// arriving returns the chains before routing.
func (s *schema) arriving() []chain {
	pre := chain{
		name:   "prerouting",
		header: "type nat hook prerouting priority dstnat; policy accept;",
		hook:   &nft.Hook{Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: -100},
	}
	inBand := chain{name: inBandChain, comment: inBandComment}
	if s.options.InBand != InBandOff {
		pre.rules = append(pre.rules, mayNameServer(s.four, inBand.name))
	}
	for _, f := range []family{s.four, s.six} {
		pre.rules = append(pre.rules, markMapped(f), translate(f, s.options.Marks))
	}
	switch s.options.InBand {
	case InBandOpen:
		inBand.rules = []rule{markNamed(s, "ip saddr", s.four.loadSource(), s.inBand.open), translateNamed(s)}
		return []chain{pre, inBand}
	case InBandAuthenticated:
		inBand.rules = []rule{markNamed(s, fmt.Sprintf("ip saddr . meta mark & %#x", uint32(s.options.Marks)), s.loadProof(), s.inBand.keyed), translateNamed(s)}
		// Later rules must not see the marks, including those of repeated SYNs, which do not pass the nat chains.
		unmark := chain{
			name:   "unmark",
			header: "type filter hook prerouting priority -99; policy accept;",
			hook:   &nft.Hook{Type: "filter", Number: unix.NF_INET_PRE_ROUTING, Priority: -99},
			rules:  []rule{unmark(s.options.Marks)},
		}
		return []chain{pre, inBand, unmark}
	case InBandOff:
	}
	return []chain{pre}
}

// leaving returns the chains after routing.
func (s *schema) leaving() []chain {
	forwarded, ours, opening := chain{name: "forwarded"}, chain{name: "ours"}, chain{name: "opening"}
	fromTunnels, toHost := chain{name: "from_tunnels"}, chain{name: "tunnel_to_host"}
	toConverter := chain{name: "tunnel_to_converter"}
	forwarded.rules = []rule{keepInTunnels(s.tunnelIfs), always(ours.name)}
	ours.rules = []rule{newJump(opening.name)}
	if s.options.Bandwidth > 0 {
		set := s.memberStateSet("bandwidth")
		s.sets = append(s.sets, set)
		ours.rules = append(ours.rules, limitBandwidth(set, s.options.Marks, s.options.Bandwidth))
	}
	// The order matters: packets over a member's own rate must not count for the total, and dropped packets must not
	// count for the quota.
	if s.options.Total > 0 {
		ours.rules = append(ours.rules, limitTotal(original, s.options.Total), limitTotal(reply, s.options.Total))
	}
	if s.options.Quota > 0 {
		ours.rules = append(ours.rules, gotoChain(quotaChain))
	}
	opening.rules = []rule{rejectClosed(s.closed, s.options.Marks), rejectStopped(s.stopped, s.options.Marks), rejectIntoTunnels(s.tunnelIfs)}
	// This comes before connections are counted, because counting costs more the more there are.
	if s.options.Rate > 0 {
		set := s.memberStateSet("opened")
		s.sets = append(s.sets, set)
		opening.rules = append(opening.rules, limitRate(set, s.options.Marks, s.options.Rate))
	}
	if s.options.InBand != InBandOff {
		opening.rules = append(opening.rules, stripOption())
	}
	if s.options.Connections > 0 {
		set := s.memberStateSet("connections")
		s.sets = append(s.sets, set)
		opening.rules = append(opening.rules, limitConnections(set, s.options.Marks, s.options.Connections))
	}
	fromTunnels.rules = []rule{admitTunnel(s.four, s.ports), admitTunnel(s.six, s.ports), oursGoto(s.options.Marks, ours.name), rejectTCP(), dropRest()}
	toHost.rules = []rule{acceptAnswers(), acceptPing4(), acceptPing6(), dropRest()}
	input := chain{
		name:   "input",
		header: "type filter hook input priority filter; policy accept;",
		hook:   &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN, Priority: 0},
		rules:  []rule{tunnelGoto(s.tunnelIfs, toHost.name)},
	}
	if s.options.Converter > 0 {
		input.rules = append(input.rules, answersGoto(s.options.Marks, ours.name))
		toHost.rules = slices.Insert(toHost.rules, 1, toConverterGoto(s.options.Converter, toConverter.name))
		toConverter.rules = []rule{setTunnelled(s.options.Marks), acceptAll()}
	}
	chains := []chain{
		{
			name:   "forward",
			header: "type filter hook forward priority filter; policy accept;",
			hook:   &nft.Hook{Type: "filter", Number: unix.NF_INET_FORWARD, Priority: 0},
			rules: []rule{oursGoto(s.options.Marks, forwarded.name), tunnelGoto(s.tunnelIfs, fromTunnels.name), dropIntoTunnels(s.tunnelIfs),
				dropStrangers(s.four), dropStrangers(s.six)},
		},
		forwarded, ours, opening, fromTunnels, input, toHost,
		{
			name:   "postrouting",
			header: "type nat hook postrouting priority srcnat; policy accept;",
			hook:   &nft.Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: 100},
			rules:  []rule{masquerade(s.options.Marks)},
		},
	}
	if s.options.Converter > 0 {
		converting := chain{name: "converting", comment: "connections that the converter opens for members"}
		converting.rules = []rule{oursGoto(s.options.Marks, ours.name), admitConverted(s, s.four), admitConverted(s, s.six),
			resumedJump(s.options.Marks, opening.name), oursGoto(s.options.Marks, ours.name), dropAwaited(s.awaited, s.options.Marks), rejectTCP(), dropRest()}
		chains = append(chains, toConverter, converting, chain{
			name:   "output",
			header: "type filter hook output priority filter; policy accept;",
			hook:   &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: 0},
			rules:  []rule{convertedGoto(s.options.Marks, converting.name), keepConverterInTunnels(s.tunnelIfs, s.options.Marks)},
		})
	}
	if s.options.Quota > 0 {
		// A reset notifies both ends that this path has ended, so that MPTCP continues on others.
		spent := chain{name: spentChain, rules: []rule{rejectTCP(), dropRest()}}
		if s.options.Converter > 0 {
			spent.rules = slices.Insert(spent.rules, 0, acceptToHost())
		}
		chains = append(chains, chain{name: quotaChain}, spent)
	}
	return chains
}

// inBandChain has the rules for SYNs that name their server.
const inBandChain = "inband"

// quotaChain has one rule, which contains the used amount and is therefore not part of the schema. spentChain gets packets
// beyond the quota.
const (
	quotaChain = "month"
	spentChain = "spent"
)

func (s *schema) quota(used uint64) chain {
	return chain{name: quotaChain, rules: []rule{limitQuota(s.options.Quota, used, spentChain)}}
}

// memberStateSet returns a set of the kernel's counters for each member, by id.
func (s *schema) memberStateSet(name string) nft.Set {
	return nft.Set{Name: name, Key: []nft.Type{nft.Mark}, Dynamic: true, Size: uint32(s.options.Marks.MaxMembers())}
}

// emit adds the whole table to the transaction.
func (s *schema) emit(tx *nft.Tx) {
	tx.AddTable(table)
	for _, set := range s.sets {
		tx.AddSet(table, set)
	}
	chains := make([]nft.Chain, len(s.chains))
	for i, c := range s.chains {
		chains[i] = c.nft()
	}
	tx.AddChains(table, chains)
}

func (c chain) nft() nft.Chain {
	out := nft.Chain{Name: c.name, Comment: c.comment, Hook: c.hook}
	for _, r := range c.rules {
		out.Rules = append(out.Rules, r.exprs)
	}
	return out
}
