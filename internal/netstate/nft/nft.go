// Package nft writes nftables transactions and reads sets back. It takes the expressions of rules
// from github.com/google/nftables and does the rest itself for two reasons: that library does not
// store the byte order of a map's data, so that nft prints and saves numbers in it reversed; and it
// reads large sets in pieces of a page, each of which makes the kernel walk the set from its start,
// so that a hundred thousand elements take many seconds. It knows nothing of waypoints; anything
// that needs a table may import it.
//
// Message layouts: include/uapi/linux/netfilter/nf_tables.h; user data as nft writes it:
// libnftnl, include/libnftnl/udata.h.
package nft

import (
	"time"

	"github.com/google/nftables/expr"
)

// Table names a table. All of ours are of family inet: one table for IPv4 and IPv6.
type Table struct{ Name string }

// Type is a data type that nft knows by a number (nft: include/datatype.h), needed for printing.
type Type struct {
	name     string
	id       uint32
	size     uint32 // bytes
	hostLong bool   // kept in the host's byte order
}

// String is the type's name in nft.
func (t Type) String() string { return t.name }

// Size is how many bytes a value takes.
func (t Type) Size() uint32 { return t.size }

// The types in use.
var (
	IPv4Addr    = Type{name: "ipv4_addr", id: 7, size: 4}
	IPv6Addr    = Type{name: "ipv6_addr", id: 8, size: 16}
	InetService = Type{name: "inet_service", id: 13, size: 2}
	Mark        = Type{name: "mark", id: 19, size: 4, hostLong: true}
	IfName      = Type{name: "ifname", id: 41, size: 16, hostLong: true}
)

// Set is a set, or a map if it has data types. More than one type is a concatenation, of which each
// part is filled up to four bytes.
type Set struct {
	Name    string
	Key     []Type
	Data    []Type
	Timeout bool   // elements have timeouts
	Dynamic bool   // rules add elements
	Size    uint32 // most elements; 0: no bound
	Comment string
}

// Element is an element of a set.
type Element struct {
	Key, Data []byte
	Timeout   time.Duration // written: life from now on; 0: for ever
	Expires   time.Duration // read: life left
	Comment   string
}

// Hook is where in a packet's way a base chain stands.
type Hook struct {
	Type     string // "nat" or "filter"
	Number   uint32 // NF_INET_…
	Priority int32
}

// Chain is a chain with its rules, a base chain if it has a hook. A base chain accepts what passes
// its rules.
type Chain struct {
	Name  string
	Hook  *Hook
	Rules [][]expr.Any
}
