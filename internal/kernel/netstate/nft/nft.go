// Package nft writes nftables transactions and reads sets back. It knows nothing of waypoints; any package that needs a
// table may import it.
//
// It uses the rule expressions of github.com/google/nftables and implements the rest itself, for two reasons. That
// library does not store the byte order of a map's data, so nft prints and saves its numbers reversed. And it reads
// large sets in parts of a page; for each part the kernel walks the set from its start, so a hundred thousand elements
// take many seconds.
//
// # Where to find what
//
//	nft.go                        tables, sets, chains and types
//	tx.go encode.go expr.go       transactions, and their encoding
//	conn.go decode.go             carrying them out, and reading sets and chains back
//	interval.go                   sets of ranges
//	written.go held.go            whether the written rules and elements still exist
//	logged.go                     receiving packets that rules log
//	removals.go kept.go           noticing that another program removed them, and restoring them
//	rule.go marks.go markflow.go  other programs' rules that use marks
//
// Message layouts: include/uapi/linux/netfilter/nf_tables.h. User data in nft's format: libnftnl,
// include/libnftnl/udata.h.
package nft

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
)

// Table names a table. All of our tables are of the family inet, which has IPv4 and IPv6.
type Table struct {
	Name string
	// Owned makes the kernel remove the table when the Conn that added it is closed or its process ends. Other programs
	// can read the table, but not change or remove it (Linux 5.12).
	Owned bool
}

// Type is a data type. Its id is nft's number (nft: include/datatype.h), which nft needs for printing.
type Type struct {
	name     string
	id       uint32
	size     uint32 // bytes
	hostLong bool   // in the host's byte order
	like     string // for a type without a name: an expression of that type in nft's syntax
	likeUser []byte // like, as nft stores it with a set
}

// String returns the type's name in nft or, for a type without one, an expression of that type.
func (t Type) String() string {
	if t.name == "" {
		return t.like
	}
	return t.name
}

// Size returns the size of a value in bytes.
func (t Type) Size() uint32 { return t.size }

// The types in use.
var (
	IPv4Addr    = Type{name: "ipv4_addr", id: 7, size: 4, like: "ip saddr", likeUser: fieldUser(protoIP, ipSaddr)}
	IPv6Addr    = Type{name: "ipv6_addr", id: 8, size: 16, like: "ip6 saddr", likeUser: fieldUser(protoIP6, ip6Saddr)}
	InetService = Type{name: "inet_service", id: 13, size: 2, like: "udp sport", likeUser: fieldUser(protoUDP, udpSport)}
	Mark        = Type{name: "mark", id: 19, size: 4, hostLong: true}
	// Verdict is a map's data that leads to chains.
	Verdict = Type{name: "verdict", id: 0xffffff00} // NFT_DATA_VERDICT
	IfName  = Type{name: "ifname", id: 41, size: 16, hostLong: true}
	// Word is a big-endian number of 32 bits. nft gives parts of TCP options this type, and compares them only with
	// sets of it, but has no name for it.
	Word = TransportBits(32, 32)
)

// TransportBits returns the type of a big-endian number in a packet, at an offset from the transport header. Both
// arguments are in bits; the size is a multiple of eight. nft has no name for it.
func TransportBits(offset, size uint32) Type {
	return Type{id: 4, size: size / 8, like: fmt.Sprintf("@th,%d,%d", offset, size), likeUser: payloadUser(transportBase, offset, size)}
}

// Set is a set, or a map if it has data types. Several types form a concatenation, in which each part is padded to four
// bytes.
type Set struct {
	Name     string
	Key      []Type
	Data     []Type
	Interval bool   // elements are ranges; only for big-endian keys of one type
	Timeout  bool   // elements have timeouts
	Dynamic  bool   // rules add elements
	Size     uint32 // maximum number of elements; 0: no limit
	Comment  string
}

// Types returns the declaration of the set's types in nft's syntax.
func (s Set) Types() string {
	types := "type " + concatWords(s.Key)
	if s.typeOf() {
		types = "typeof " + concatExpressions(s.Key)
	}
	if len(s.Data) > 0 {
		types += " : " + concatWords(s.Data)
	}
	return types
}

// typeOf reports whether the set is declared by expressions, because a part of its key has no named type.
func (s Set) typeOf() bool {
	return slices.ContainsFunc(s.Key, func(t Type) bool { return t.name == "" })
}

func concatExpressions(types []Type) string {
	words := make([]string, len(types))
	for i, t := range types {
		words[i] = t.like
	}
	return strings.Join(words, " . ")
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
	Jump      string        // in a map of verdicts, instead of Data: the chain
	Last      []byte        // in a set of intervals: the end of the range that begins with Key
	Timeout   time.Duration // when written: lifetime from now on; 0: for ever
	Expires   time.Duration // when read: remaining lifetime
	Comment   string

	bound bool // not an element but the bound of a range: see interval.go
}

// Hook is the hook of a base chain.
type Hook struct {
	Type     string // "nat" or "filter"
	Number   uint32 // NF_INET_…
	Priority int32
}

// Chain is a chain with its rules. With a hook it is a base chain, whose policy is accept.
type Chain struct {
	Name    string
	Comment string
	Hook    *Hook
	Rules   [][]expr.Any
}
