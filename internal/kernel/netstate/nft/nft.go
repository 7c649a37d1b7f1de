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
	"strings"
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
	like     string // for a type without a name: an expression of that type, in nft's words
	likeUser []byte // the same as nft keeps it with a set
}

// String is the type's name in nft; for a type without one, an expression of that type.
func (t Type) String() string {
	if t.like != "" {
		return t.like
	}
	return t.name
}

// Size is how many bytes a value takes.
func (t Type) Size() uint32 { return t.size }

// The types in use.
var (
	IPv4Addr    = Type{name: "ipv4_addr", id: 7, size: 4}
	IPv6Addr    = Type{name: "ipv6_addr", id: 8, size: 16}
	InetService = Type{name: "inet_service", id: 13, size: 2}
	Mark        = Type{name: "mark", id: 19, size: 4, hostLong: true}
	// Verdict is a map's data that leads to chains.
	Verdict = Type{name: "verdict", id: 0xffffff00} // NFT_DATA_VERDICT
	IfName  = Type{name: "ifname", id: 41, size: 16, hostLong: true}
	// Word is a big-endian number of 32 bits. It is what nft takes a part of a TCP option for, which
	// it compares with sets of nothing else; but it knows no name for it.
	Word = Type{id: 4, size: 4, like: "@th,32,32", likeUser: payloadUser(transportBase, 32, 32)}
)

// Set is a set, or a map if it has data types. More than one type is a concatenation, of which each
// part is filled up to four bytes.
type Set struct {
	Name     string
	Key      []Type
	Data     []Type
	Interval bool   // elements are ranges; of big-endian keys of one type only
	Timeout  bool   // elements have timeouts
	Dynamic  bool   // rules add elements
	Size     uint32 // most elements; 0: no bound
	Comment  string
}

// Types declares the set's types in nft's words.
func (s Set) Types() string {
	word := "type "
	if s.Key[0].like != "" {
		word = "typeof "
	}
	types := word + concatWords(s.Key)
	if len(s.Data) > 0 {
		types += " : " + concatWords(s.Data)
	}
	return types
}

func concatWords(types []Type) string {
	words := make([]string, len(types))
	for i, t := range types {
		words[i] = t.String()
	}
	return strings.Join(words, " . ")
}

// Element is an element of a set.
type Element struct {
	Key, Data []byte
	Jump      string        // in place of Data in a map of verdicts: the chain
	Last      []byte        // of a set of intervals: the end of the range that Key begins
	Timeout   time.Duration // written: life from now on; 0: for ever
	Expires   time.Duration // read: life left
	Comment   string

	bound bool // not an element of its own: what is behind a range's end, as the kernel keeps it
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
