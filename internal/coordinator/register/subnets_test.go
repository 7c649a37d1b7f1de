package register

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestSubnetsNeverOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPool()
		lan := rapid.Custom(func(t *rapid.T) netip.Prefix {
			a := netip.AddrFrom4([4]byte{10, byte(rapid.IntRange(0, 3).Draw(t, "block")), rapid.Byte().Draw(t, "c"), rapid.Byte().Draw(t, "d")})
			return netip.PrefixFrom(a, rapid.IntRange(14, 32).Draw(t, "bits")).Masked()
		})
		var given []netip.Prefix
		for range rapid.IntRange(1, 60).Draw(t, "joins") {
			lans := rapid.SliceOfN(lan, 0, 3).Draw(t, "lans")
			s, block, ok := p.pick(lans, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "chance") })
			if !ok || s.Bits() != subnetBits || !allSubnets.Overlaps(s) {
				t.Fatalf("got %v, %v", s, ok)
			}
			for _, other := range given {
				if other.Overlaps(s) {
					t.Fatalf("%v and %v", other, s)
				}
			}
			for _, l := range append(lans, netip.Prefix{}) { // there is room to avoid all of these
				if l.IsValid() && l.Overlaps(s) {
					t.Fatalf("%v is in the host's own %v", s, l)
				}
			}
			if block.IsValid() {
				p.blocks = append(p.blocks, block)
			}
			if len(given) > 0 && rapid.IntRange(0, 4).Draw(t, "one goes") == 0 {
				p.taken.remove(given[0])
				given = given[1:]
			}
			p.taken.add(s)
			given = append(given, s)
		}
	})
}

func TestSubnetsAvoidOthersLANs(t *testing.T) {
	p := newPool()
	zero := func(int) int { return 0 }
	p.lans.add(netip.MustParsePrefix("10.0.0.0/24"))
	p.lans.add(netip.MustParsePrefix("10.0.1.7/32"))
	if s, block, _ := p.pick(nil, zero); s.String() != "10.0.1.64/26" || block.String() != "10.0.0.0/16" {
		t.Errorf("got %v of %v", s, block)
	}
	// A member whose own network covers everything gets a subnet nevertheless.
	if s, _, ok := p.pick([]netip.Prefix{allSubnets}, zero); !ok || s.String() != "10.0.0.0/26" {
		t.Errorf("got %v, %v", s, ok)
	}
}

// There are as many as a coordinator takes members, and the last is found quickly enough.
func TestSubnetsForAll(t *testing.T) {
	p := newPool()
	for i := range 20_000 {
		s, block, ok := p.pick(nil, rand.IntN)
		if !ok {
			t.Fatalf("none after %d", i)
		}
		if block.IsValid() {
			p.blocks = append(p.blocks, block)
		}
		p.taken.add(s)
	}
	if n := len(p.blocks); n != 20 {
		t.Errorf("20,000 subnets are in %d blocks of 1,024", n)
	}
	if most := 1 << (subnetBits - 8); most < maxMembers {
		t.Errorf("%d subnets for %d members", most, maxMembers)
	}
}
