package cflb

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// plain is a permutation that changes nothing, as in the text's example.
type plain struct{}

func (plain) Bits() int               { return 32 }
func (plain) Forward(n Number) Number { return n }
func (plain) Inverse(n Number) Number { return n }

// TestExample is the example of section 5.4.2: with an initial TTL of 64, B = 3 and L = 20, R1 is at position 4 and R4
// at position 2, and p = 18 without noise. It goes through both forms of E and D, with the TTL and without.
func TestExample(t *testing.T) {
	with, err := New(3, plain{})
	if err != nil {
		t.Fatal(err)
	}
	u := Flow(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 6)
	path := []Choice{{64, 0}, {62, 2}}
	for name, s := range map[string]*Scheme{"with the TTL": with, "without": with.WithoutTTL()} {
		if s.Length() != 20 {
			t.Errorf("L = %d, not 20", s.Length())
		}
		if r1, r4 := s.position(64), s.position(62); r1 != 4 || r4 != 2 {
			t.Errorf("positions %d and %d, not 4 and 2", r1, r4)
		}
		p, err := s.Selector(path, u)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range path {
			if got := s.Decode(p, c.TTL, u); got != c.Next {
				t.Errorf("%s: the router at TTL %d takes %d", name, c.TTL, got)
			}
		}
		if got := bare(s, p, path, u); got != 18 {
			t.Errorf("%s: p = %d, not 18", name, got)
		}
	}
	// Without the TTL, the digits are those of the text but for one number.
	s := with.WithoutTTL()
	if s.noise(64, u) != s.noise(62, u) || with.noise(64, u) == with.noise(62, u) {
		t.Error("the noise of both routers is not the same exactly without the TTL")
	}
}

// bare returns the path selector without noise, whose digits are the choices.
func bare(s *Scheme, p Number, path []Choice, u Uncontrolled) (sum uint64) {
	power := uint64(1)
	for i := range s.Length() {
		var digit uint64
		p, digit = p.divMod(uint64(s.Radix()))
		for _, c := range path {
			if s.position(c.TTL) == i {
				sum += (digit + s.radix - s.noise(c.TTL, u)) % s.radix * power
			}
		}
		power *= s.radix
	}
	return sum
}

// TestPolarisation: without the TTL, routers L hops apart choose alike for all flows (section 5.4.4).
func TestPolarisation(t *testing.T) {
	with := newScheme(t, 16, Speck)
	for _, s := range []*Scheme{with, with.WithoutTTL()} {
		const flows = 1000
		same := 0
		for i := range uint64(flows) {
			c := NumberOf(i * 2654435761 & 0xffffffff)
			if s.Decode(c, 64, probeFlow) == s.Decode(c, uint8(64-s.Length()), probeFlow) {
				same++
			}
		}
		if (same == flows) != s.alike {
			t.Errorf("without the TTL: %v; %d of %d flows are treated alike", s.alike, same, flows)
		}
	}
}

// TestPublishedLengths has the figures of section 5.6.3.
func TestPublishedLengths(t *testing.T) {
	for _, c := range []struct{ radix, width, length int }{
		{6, 32, 12}, {3, 32, 20}, {2, 32, 32}, {16, 32, 8}, {10, 20, 6}, {2, 160, 160}, {256, 160, 20},
	} {
		if got := Length(c.radix, c.width); got != c.length {
			t.Errorf("B = %d, X = %d: L = %d, not %d", c.radix, c.width, got, c.length)
		}
	}
	if got := BitsFor(6, 16); got != 42 {
		t.Errorf("16 hops with B = 6 need %d bits, not 42", got)
	}
	if got := BitsFor(10, 6); got != 20 {
		t.Errorf("6 hops with B = 10 need %d bits, not 20", got)
	}
	if got := BitsFor(256, 21); got != 0 {
		t.Errorf("more than %d bits suffice: %d", MaxBits, got)
	}
}

func drawScheme(t *rapid.T) *Scheme {
	s, err := New(rapid.IntRange(2, MaxRadix).Draw(t, "radix"), drawPermutation(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func drawFlow(t *rapid.T) Uncontrolled {
	if rapid.Bool().Draw(t, "IPv6") {
		a, b := drawNumber(t, 128), drawNumber(t, 128)
		return Flow(netip.AddrFrom16([16]byte(a.big().FillBytes(make([]byte, 16)))),
			netip.AddrFrom16([16]byte(b.big().FillBytes(make([]byte, 16)))), 6)
	}
	a, b := drawNumber(t, 32), drawNumber(t, 32)
	return Flow(netip.AddrFrom4([4]byte(a.big().FillBytes(make([]byte, 4)))),
		netip.AddrFrom4([4]byte(b.big().FillBytes(make([]byte, 4)))), 17)
}

// TestEveryChoiceDecodes: each router on a path of at most L routers takes the hop that the source chose, whatever
// the radix, width, cipher, initial TTL and number of next hops, by Encode as by Alias.
func TestEveryChoiceDecodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, u := drawScheme(t), drawFlow(t)
		length := rapid.IntRange(1, min(s.Length(), 255)).Draw(t, "routers")
		initial := rapid.IntRange(length, 255).Draw(t, "initial TTL")
		hops := make([]int, length)
		choices := make([]int, length)
		for i := range hops {
			hops[i] = rapid.IntRange(1, s.Radix()).Draw(t, "next hops")
			choices[i] = rapid.IntRange(0, hops[i]-1).Draw(t, "choice")
		}
		path := EncodeFlow(choices, uint8(initial))
		straight, err := s.Encode(path, u)
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "random"), 1))
		alias, err := s.Alias(path, u, random)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []Number{straight, alias} {
			if !c.fits(s.Bits()) {
				t.Fatalf("controlled fields %v exceed %d bits", c, s.Bits())
			}
			for i := range choices {
				r := Router{s, random.Uint32()}
				if got := r.Next(c, u, uint8(initial-i), hops[i]); got != choices[i] {
					t.Fatalf("router %d takes next hop %d, not %d", i, got, choices[i])
				}
			}
		}
	})
}

// TestEveryFlowHasANextHop: what nobody controls gets one of the next hops.
func TestEveryFlowHasANextHop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, u := drawScheme(t), drawFlow(t)
		r := Router{s, rapid.Uint32().Draw(t, "router")}
		hops := rapid.IntRange(0, 2*s.Radix()).Draw(t, "next hops")
		got := r.Next(drawNumber(t, s.Bits()), u, rapid.Byte().Draw(t, "ttl"), hops)
		if got < 0 || got >= max(1, hops) {
			t.Fatalf("next hop %d of %d", got, hops)
		}
	})
}

func newScheme(t testing.TB, radix int, c Cipher) *Scheme {
	t.Helper()
	p, err := NewPermutation(c, 32, []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(radix, p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestAliases: random unused positions and other initial TTLs give other flows.
func TestAliases(t *testing.T) {
	s, u := newScheme(t, 4, Speck), Flow(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 6)
	random := rand.New(rand.NewPCG(1, 1))
	seen := map[Number]bool{}
	for initial := uint8(60); initial < 70; initial++ {
		for range 100 {
			c, err := s.Alias(EncodeFlow([]int{1, 2, 3}, initial), u, random)
			if err != nil {
				t.Fatal(err)
			}
			seen[c] = true
		}
	}
	if len(seen) < 990 {
		t.Errorf("1000 aliases are %d flows", len(seen))
	}
}

// TestNoPolarisation: two routers of the same next hops and TTL-dependent noise spread the flows of one half again in
// halves, with and without a common position.
func TestNoPolarisation(t *testing.T) {
	s := newScheme(t, 3, Speck)
	first, second := Router{s, 1}, Router{s, 2}
	random := rand.New(rand.NewPCG(1, 1))
	for _, distance := range []uint8{1, 20} { // L is 20
		var count [2]int
		for range 20000 {
			c := Number{uint64(random.Uint32())}
			u := Uncontrolled{}.with(random.Uint32(), random.Uint32(), 6)
			if first.Next(c, u, 64, 2) == 0 {
				count[second.Next(c, u, 64-distance, 2)]++
			}
		}
		if share := float64(count[0]) / float64(count[0]+count[1]); share < 0.48 || share > 0.52 {
			t.Errorf("%d hops behind: %.3f of the flows go one way", distance, share)
		}
	}
}

func TestBadChoices(t *testing.T) {
	s := newScheme(t, 3, Speck)
	var u Uncontrolled
	if _, err := s.Encode([]Choice{{64, 3}}, u); !errors.Is(err, ErrRadix) {
		t.Errorf("a choice of the radix: %v", err)
	}
	if _, err := s.Encode([]Choice{{64, -1}}, u); !errors.Is(err, ErrRadix) {
		t.Errorf("a negative choice: %v", err)
	}
	collisions := 0
	for n := range 3 {
		if _, err := s.Encode([]Choice{{64, 0}, {44, n}}, u); errors.Is(err, ErrCollision) {
			collisions++
		} else if err != nil {
			t.Error(err)
		}
	}
	if collisions != 2 {
		t.Errorf("%d of 3 choices collide with another at the same position, not 2", collisions)
	}
	for _, radix := range []int{-1, 0, 1, MaxRadix + 1} {
		if _, err := New(radix, plain{}); err == nil {
			t.Errorf("radix %d is accepted", radix)
		}
	}
}

// TestSourcePorts: with a fixed destination port, those source ports are found that lead along the path, and no other.
func TestSourcePorts(t *testing.T) {
	s, u := newScheme(t, 4, Speck), Flow(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 6)
	choices := []int{3, 0, 2}
	path := EncodeFlow(choices, 64)
	ports, err := s.SourcePorts(path, u, 443, 32768, 60999, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	var want []uint16
	for p := 32768; p <= 60999; p++ {
		right := true
		for i, n := range choices {
			right = right && s.Decode(OfPorts(uint16(p), 443), 64-uint8(i), u) == n
		}
		if right {
			want = append(want, uint16(p))
		}
	}
	if !slices.Equal(ports, want) {
		t.Errorf("%d ports, not %d", len(ports), len(want))
	}
	if few, _ := s.SourcePorts(path, u, 443, 32768, 60999, 2); !slices.Equal(few, want[:2]) {
		t.Errorf("the first two are %v, not %v", few, want[:2])
	}
}

func BenchmarkNext(b *testing.B) {
	for _, c := range []Cipher{Speck, RC5, Skip32} {
		b.Run(string(c), func(b *testing.B) {
			r := Router{newScheme(b, 4, c), 7}
			var u Uncontrolled
			for i := 0; b.Loop(); i++ {
				r.Next(Number{uint64(uint32(i))}, u, 64, 2)
			}
		})
	}
}
