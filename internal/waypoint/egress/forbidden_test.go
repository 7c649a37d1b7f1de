package egress

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestForbiddenByDefault(t *testing.T) {
	p, err := New(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range p.Around(Surroundings{Own: []netip.Addr{netip.MustParseAddr("8.8.4.4")}}).Forbidden() {
		if r.First.Is4() {
			got = append(got, r.First.String()+"-"+r.Last.String())
		}
	}
	want := "0.0.0.0-0.255.255.255 8.8.4.4-8.8.4.4 10.0.0.0-10.255.255.255 100.64.0.0-100.127.255.255 127.0.0.0-127.255.255.255" +
		" 161.26.0.0-161.26.255.255 166.8.0.0-166.11.255.255 168.63.129.16-168.63.129.16 169.254.0.0-169.254.255.255 172.16.0.0-172.31.255.255 192.0.0.0-192.0.0.255 192.0.2.0-192.0.2.255" +
		" 192.88.99.0-192.88.99.255 192.168.0.0-192.168.255.255 198.18.0.0-198.19.255.255 198.51.100.0-198.51.100.255 199.36.153.4-199.36.153.11" +
		" 203.0.113.0-203.0.113.255 224.0.0.0-255.255.255.255"
	if strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
}

// The ranges and Check agree on every address, for any policy, and no two ranges could be merged.
func TestForbiddenIsWhatCheckDenies(t *testing.T) {
	four := rapid.Custom(func(t *rapid.T) netip.Addr {
		return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "four")))
	})
	// Of all kinds that are judged specially.
	six := rapid.Custom(func(t *rapid.T) netip.Addr {
		var b [16]byte
		copy(b[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "six"))
		switch rapid.IntRange(0, 3).Draw(t, "form") {
		case 0:
			b = wraps(four.Draw(t, "inner"))[0].As16()
			b[15] = 1
		case 1:
			b = wraps(four.Draw(t, "inner"))[1].As16()
		case 2:
			binary.BigEndian.PutUint16(b[:], rapid.SampledFrom([]uint16{0, 0x64, 0x2001, 0x2002, 0x3fff, 0xfc00, 0xfe80, 0xff02}).Draw(t, "head"))
		}
		return netip.AddrFrom16(b)
	})
	addr := rapid.OneOf(four, six)
	prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		a := addr.Draw(t, "addr")
		return netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, "bits")).Masked()
	})
	rapid.Check(t, func(t *rapid.T) {
		allow, deny := rapid.SliceOf(prefix).Draw(t, "allow"), rapid.SliceOf(prefix).Draw(t, "deny")
		own := rapid.SliceOf(addr).Draw(t, "own")
		near := Surroundings{Own: own, OnLink: rapid.SliceOf(prefix).Draw(t, "links"),
			Outside: Outside{NATs: rapid.SliceOf(addr).Draw(t, "NATs"), Routers: rapid.SliceOf(addr).Draw(t, "routers"), Hidden: rapid.Bool().Draw(t, "hidden")}}
		p, err := New(allow, deny, nil)
		if err != nil {
			t.Skip("allows what never is")
		}
		p = p.Around(near)
		ranges := p.Forbidden()
		for i, r := range ranges {
			if r.Last.Less(r.First) || r.First.Is4() != r.Last.Is4() {
				t.Fatalf("a range %v", r)
			}
			if i > 0 && r.First.Is4() == ranges[i-1].First.Is4() && !ranges[i-1].Last.Next().Less(r.First) {
				t.Fatalf("%v and %v are not apart", ranges[i-1], r)
			}
		}
		check := func(a netip.Addr) {
			if !a.IsValid() {
				return
			}
			err := p.Check(netip.AddrPortFrom(a, 443))
			in := slices.ContainsFunc(ranges, func(r Range) bool { return r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0 })
			if in != (err != nil) {
				t.Fatalf("%v: in a range %v, but %v", a, in, err)
			}
		}
		for _, x := range rapid.SliceOf(addr).Draw(t, "servers") {
			check(x)
		}
		for _, x := range slices.Concat(own, near.NATs) {
			check(x)
			if x.Is4() {
				check(wraps(x)[0])
				check(wraps(x)[1])
			}
		}
		for _, x := range slices.Concat(allow, deny, near.OnLink) { // where errors would be
			for _, edge := range appendEdges(nil, x) {
				check(edge)
				check(edge.Prev())
				if edge.Is4() {
					check(wraps(edge)[0])
					check(wraps(edge)[1].Prev())
				}
			}
		}
	})
}
