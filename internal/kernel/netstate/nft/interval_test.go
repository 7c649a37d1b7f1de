package nft

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func ipRange(first, last string) Element {
	return Element{Key: netip.MustParseAddr(first).AsSlice(), Last: netip.MustParseAddr(last).AsSlice()}
}

var (
	ranges4 = []Element{
		ipRange("0.0.0.0", "0.255.255.255"),
		ipRange("10.0.0.0", "11.255.255.255"),
		ipRange("192.0.2.7", "192.0.2.7"),
		ipRange("192.0.2.9", "192.0.2.10"),
		ipRange("224.0.0.0", "255.255.255.255"),
	}
	ranges6 = []Element{
		ipRange("::", "::ffff:ffff"),
		ipRange("fd00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
		ipRange("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
	}
	set4 = Set{Name: "r4", Key: []Type{IPv4Addr}, Interval: true}
	set6 = Set{Name: "r6", Key: []Type{IPv6Addr}, Interval: true}
	word = Set{Name: "w", Key: []Type{Word}, Interval: true}
)

func TestRangesOfTheKernel(t *testing.T) {
	ns := netnstest.New(t)
	c := open(t, ns)
	err := c.Commit("set up", func(tx *Tx) {
		tx.AddTable(testTable)
		tx.AddSet(testTable, set4)
		tx.AddSet(testTable, set6)
		tx.AddSet(testTable, word)
		tx.AddElements(testTable, set4, ranges4)
		tx.AddElements(testTable, set6, ranges6)
		tx.AddElements(testTable, word, ranges4)
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `
table inet t {
	set r4 {
		type ipv4_addr
		flags interval
		elements = { 0.0.0.0/8, 10.0.0.0/7, 192.0.2.7, 192.0.2.9-192.0.2.10, 224.0.0.0/3 }
	}

	set r6 {
		type ipv6_addr
		flags interval
		elements = { ::/96, fd00::/8, ff00::/8 }
	}

	set w {
		typeof @th,32,32
		flags interval
		elements = { 0x0-0xffffff, 0xa000000-0xbffffff, 0xc0000207, 0xc0000209-0xc000020a, 0xe0000000-0xffffffff }
	}
}
`
	listed := "\n" + strings.ReplaceAll(ns.Output(t, "nft", "list", "ruleset"), ",\n\t\t\t     ", ", ")
	if diff := cmp.Diff(want, listed); diff != "" {
		t.Errorf("as nft lists it (-want +got):\n%s", diff)
	}
	for _, s := range []struct {
		set  Set
		want []Element
	}{{set4, ranges4}, {set6, ranges6}, {word, ranges4}} {
		list, err := c.Elements(testTable, s.set)
		if diff := cmp.Diff(s.want, list, cmpopts.IgnoreUnexported(Element{})); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", s.set.Name, err, diff)
		}
	}

	// All ranges are exchanged for others, overlapping ones too, in one transaction.
	other := []Element{ipRange("10.64.0.0", "10.64.0.0"), ipRange("192.0.2.0", "192.0.2.255")}
	err = c.Commit("exchange", func(tx *Tx) {
		tx.FlushSet(testTable, set4)
		tx.AddElements(testTable, set4, other)
		tx.FlushSet(testTable, set6)
	})
	if err != nil {
		t.Fatal(err)
	}
	if list, err := c.Elements(testTable, set4); err != nil || !cmp.Equal(other, list, cmpopts.IgnoreUnexported(Element{})) {
		t.Errorf("exchanged: %+v, %v", list, err)
	}
	if list, err := c.Elements(testTable, set6); err != nil || len(list) > 0 {
		t.Errorf("flushed: %+v, %v", list, err)
	}
}

// Whatever ranges there are, apart from each other, they come back; and ranges of any elements, in
// whatever order, are well-formed.
func TestRangesAreTheInverseOfBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ends := rapid.SliceOfDistinct(rapid.Uint32Range(0, 1<<32-1), func(x uint32) uint32 { return x }).Draw(t, "ends")
		slices.Sort(ends)
		var want []Element
		for i := 0; i+1 < len(ends); i += 2 {
			want = append(want, Element{Key: binary.BigEndian.AppendUint32(nil, ends[i]), Last: binary.BigEndian.AppendUint32(nil, ends[i+1])})
		}
		kept := rapid.Permutation(bounds(want)).Draw(t, "order")
		got := ranges(kept)
		if !cmp.Equal(want, got, cmpopts.IgnoreUnexported(Element{})) {
			t.Fatalf("%+v became %+v", want, got)
		}
		drop := rapid.IntRange(0, len(kept)).Draw(t, "lost")
		for _, e := range ranges(kept[drop:]) {
			if bytes.Compare(e.Key, e.Last) > 0 {
				t.Fatalf("a range that ends before it begins: %+v", e)
			}
		}
	})
}

func TestResetTCPOption(t *testing.T) {
	ns := netnstest.New(t)
	c := open(t, ns)
	err := c.Commit("set up", func(tx *Tx) {
		tx.AddTable(testTable)
		tx.AddChains(testTable, []Chain{{Name: "c", Rules: [][]expr.Any{{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG_1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{unix.IPPROTO_TCP}},
			&ResetTCPOption{Kind: 254},
		}}}})
	})
	if err != nil {
		t.Fatal(err)
	}
	if list := ns.Output(t, "nft", "list", "chain", "inet", "t", "c"); !strings.Contains(list, " reset tcp option 254\n") {
		t.Errorf("nft lists:\n%s", list)
	}
}
