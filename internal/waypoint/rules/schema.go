package rules

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/netstate/nft"
)

// table is the only one we touch.
var table = nft.Table{Name: "dcol"}

// schemaVersion counts changes of the table's shape. Limits are part of the rules, so they are part
// of the fingerprint too.
const schemaVersion = 2

// fingerprint is kept in the comment of the set of members.
func fingerprint(l Limits) string {
	return fmt.Sprintf("dcol schema %d, connections %d, bandwidth %d", schemaVersion, l.Connections, l.Bandwidth)
}

// schema is the table without its elements: what is sent to the kernel, and beside it what a
// person reads.
type schema struct {
	sets      []nft.Set
	chains    []chain
	members   nft.Set
	four, six family
}

// family is what the table holds once for IPv4 and once for IPv6.
type family struct {
	name    string // in nft's words
	nfproto byte
	addr    nft.Type
	source  uint32  // where the source address is in the header
	servers nft.Set // (client address, port) to (server address, port)
	marks   nft.Set // (client address, port) to the member's connection mark
	guarded nft.Set // interfaces
}

type chain struct {
	name   string
	header string // in nft's words; empty for a chain that is not hooked
	hook   *nft.Hook
	rules  []rule
}

type rule struct {
	text  string
	exprs []expr.Any
}

func newSchema(l Limits) *schema {
	s := &schema{
		members: nft.Set{Name: "members", Key: []nft.Type{nft.Mark}, Comment: fingerprint(l)},
		four:    newFamily(family{name: "ip", nfproto: unix.NFPROTO_IPV4, addr: nft.IPv4Addr, source: 12}, "4"),
		six:     newFamily(family{name: "ip6", nfproto: unix.NFPROTO_IPV6, addr: nft.IPv6Addr, source: 8}, "6"),
	}
	s.sets = []nft.Set{s.four.servers, s.four.marks, s.six.servers, s.six.marks, s.members, s.four.guarded, s.six.guarded}

	limits := chain{name: "quotas"}
	if l.Connections > 0 {
		set := memberStateSet("connections")
		s.sets = append(s.sets, set)
		limits.rules = append(limits.rules, limitConnections(set, l.Connections))
	}
	if l.Bandwidth > 0 {
		set := memberStateSet("bandwidth")
		s.sets = append(s.sets, set)
		limits.rules = append(limits.rules, limitBandwidth(set, l.Bandwidth))
	}
	s.chains = []chain{
		{
			name:   "prerouting",
			header: "type nat hook prerouting priority dstnat; policy accept;",
			hook:   &nft.Hook{Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: -100},
			rules:  []rule{translate(s.four), translate(s.six)},
		},
		{
			name:   "forward",
			header: "type filter hook forward priority filter; policy accept;",
			hook:   &nft.Hook{Type: "filter", Number: unix.NF_INET_FORWARD, Priority: 0},
			rules:  []rule{oursGoto(limits.name), dropStrangers(s.four), dropStrangers(s.six)},
		},
		limits,
		{
			name:   "postrouting",
			header: "type nat hook postrouting priority srcnat; policy accept;",
			hook:   &nft.Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: 100},
			rules:  []rule{masquerade()},
		},
	}
	return s
}

// newFamily names the sets. One map could lead to the server and the mark together, as registers
// take any data; but no words of nft say so, and every `nft list ruleset` would complain.
func newFamily(f family, suffix string) family {
	key := []nft.Type{f.addr, nft.InetService}
	f.servers = nft.Set{Name: "servers" + suffix, Key: key, Data: key, Timeout: true}
	f.marks = nft.Set{Name: "marks" + suffix, Key: key, Data: []nft.Type{nft.Mark}, Timeout: true}
	f.guarded = nft.Set{Name: "guarded" + suffix, Key: []nft.Type{nft.IfName}}
	return f
}

// memberStateSet holds what the kernel counts for each member, by mark.
func memberStateSet(name string) nft.Set {
	return nft.Set{Name: name, Key: []nft.Type{nft.Mark}, Dynamic: true, Size: MaxMembers}
}

// emit adds the whole table to the transaction.
func (s *schema) emit(tx *nft.Tx) {
	tx.AddTable(table)
	for _, set := range s.sets {
		tx.AddSet(table, set)
	}
	chains := make([]nft.Chain, len(s.chains))
	for i, c := range s.chains {
		chains[i] = nft.Chain{Name: c.name, Hook: c.hook}
		for _, r := range c.rules {
			chains[i].Rules = append(chains[i].Rules, r.exprs)
		}
	}
	tx.AddChains(table, chains)
}
