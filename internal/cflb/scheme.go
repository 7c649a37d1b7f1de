package cflb

import (
	"errors"
	"fmt"
	"math/rand/v2"
)

// Uncontrolled has the fields that a source cannot choose, as words: addresses and protocol.
type Uncontrolled struct {
	words [9]uint32
	n     int
}

func (u Uncontrolled) with(words ...uint32) Uncontrolled {
	u.n += copy(u.words[u.n:], words)
	return u
}

func (u Uncontrolled) hash() hash { return hash{}.words(u.words[:u.n]) }

// Choice is the next hop that a router takes.
type Choice struct {
	TTL  uint8 // of the packet when the router receives it
	Next int   // index of the next hop, from 0
}

// Scheme has the constants of a network: all its routers and sources share them.
type Scheme struct {
	radix       uint64
	length      int
	permutation Permutation
	powers      []Number // of the radix, for each position
	alike       bool     // routers at the same position have the same noise
}

// MaxRadix is the largest radix.
const MaxRadix = 256

// New returns a scheme. The radix is at least the number of next hops that any router has for a destination.
func New(radix int, p Permutation) (*Scheme, error) {
	if radix < 2 || radix > MaxRadix {
		return nil, fmt.Errorf("the radix must be between 2 and %d, not %d", MaxRadix, radix)
	}
	s := &Scheme{radix: uint64(radix), length: Length(radix, p.Bits()), permutation: p}
	power := NumberOf(1)
	for range s.length {
		s.powers = append(s.powers, power)
		power, _ = power.mulAdd(s.radix, 0)
	}
	return s, nil
}

// WithoutTTL returns the scheme of equations 5.5 to 5.8, whose digits depend on the uncontrolled fields, but not on
// the time to live. With it, routers that are L hops apart choose alike (polarisation), so networks use the scheme
// of equations 5.10 and 5.11.
func (s *Scheme) WithoutTTL() *Scheme {
	other := *s
	other.alike = true
	return &other
}

// Radix returns the base B of path selectors.
func (s *Scheme) Radix() int { return int(s.radix) }

// Length returns the number L of positions in a path selector (equation 5.4).
func (s *Scheme) Length() int { return s.length }

// Bits returns the width X of the controlled fields.
func (s *Scheme) Bits() int { return s.permutation.Bits() }

// position returns the place of a router in the path selector.
func (s *Scheme) position(ttl uint8) int { return int(ttl) % s.length }

// digit returns E, the digit of a choice (equations 5.5 and 5.10).
func (s *Scheme) digit(c Choice, u Uncontrolled) uint64 {
	return (uint64(c.Next) + s.noise(c.TTL, u)) % s.radix
}

// noise is H(u||ttl) in base B, or H(u).
func (s *Scheme) noise(ttl uint8, u Uncontrolled) uint64 {
	if s.alike {
		return uint64(u.hash().sum()) % s.radix
	}
	return uint64(u.hash().word(uint32(ttl)).sum()) % s.radix
}

// ErrCollision means that two routers share a position of the path selector and need different digits. They are a
// multiple of the selector's length apart.
var ErrCollision = errors.New("two routers share a position of the path selector: use more bits or a smaller radix")

// ErrRadix means that a choice exceeds the radix.
var ErrRadix = errors.New("the next hop's index is not below the radix")

// digits returns the digits that the choices need, by position; -1: any.
func (s *Scheme) digits(path []Choice, u Uncontrolled) ([]int, error) {
	all := make([]int, s.length)
	for i := range all {
		all[i] = -1
	}
	for _, c := range path {
		if c.Next < 0 || uint64(c.Next) >= s.radix {
			return nil, fmt.Errorf("%w: %d of %d", ErrRadix, c.Next, s.radix)
		}
		d, at := int(s.digit(c, u)), s.position(c.TTL)
		if all[at] >= 0 && all[at] != d {
			return nil, fmt.Errorf("%w (position %d)", ErrCollision, at)
		}
		all[at] = d
	}
	return all, nil
}

// Selector returns the path selector of choices, with 0 at unused positions.
func (s *Scheme) Selector(path []Choice, u Uncontrolled) (Number, error) {
	return s.selector(path, u, func() int { return 0 })
}

func (s *Scheme) selector(path []Choice, u Uncontrolled, fill func() int) (p Number, err error) {
	digits, err := s.digits(path, u)
	if err != nil {
		return p, err
	}
	for i, d := range digits {
		if d < 0 {
			d = fill()
		}
		term, _ := s.powers[i].mulAdd(uint64(d), 0)
		p = p.add(term)
	}
	return p, nil
}

// Encode returns controlled fields that lead a packet along a path (algorithm 5.2).
func (s *Scheme) Encode(path []Choice, u Uncontrolled) (Number, error) {
	p, err := s.Selector(path, u)
	return s.permutation.Forward(p), err
}

// Alias returns controlled fields like Encode, with random digits at unused positions: another flow on the same path.
// Where no position is unused, another initial TTL gives another flow.
func (s *Scheme) Alias(path []Choice, u Uncontrolled, random *rand.Rand) (Number, error) {
	p, err := s.selector(path, u, func() int { return random.IntN(int(s.radix)) })
	return s.permutation.Forward(p), err
}

// Decode returns D, the choice that controlled fields contain for a router that receives a TTL (equations 5.8 and
// 5.11). It is below the radix.
func (s *Scheme) Decode(controlled Number, ttl uint8, u Uncontrolled) int {
	return s.extract(s.permutation.Inverse(controlled), ttl, u)
}

func (s *Scheme) extract(p Number, ttl uint8, u Uncontrolled) int {
	var digit uint64
	at := s.position(ttl)
	if power := s.powers[at]; p[1]|p[2]|power[1]|power[2] == 0 {
		digit = p[0] / power[0] % s.radix
	} else {
		for range at {
			p, _ = p.divMod(s.radix)
		}
		_, digit = p.divMod(s.radix)
	}
	return int((digit + s.radix - s.noise(ttl, u)) % s.radix)
}

// Router has the constants of one router, beside those of the network.
type Router struct {
	Scheme *Scheme
	ID     uint32 // differs between routers, so that flows that nobody controls are spread anew by each
}

// Next returns the index of the next hop for a packet (algorithm 5.1), from 0 to below hops. ttl is the TTL as
// received. With no next hops it returns 0.
func (r Router) Next(controlled Number, u Uncontrolled, ttl uint8, hops int) int {
	if hops <= 1 {
		return 0
	}
	if n := r.Scheme.Decode(controlled, ttl, u); n < hops {
		return n
	}
	return int(r.hash(controlled, u) % uint32(hops))
}

// hash is H(u||c||router).
func (r Router) hash(controlled Number, u Uncontrolled) uint32 {
	h := u.hash()
	for i := 0; i < r.Scheme.Bits(); i += 32 {
		h = h.word(uint32(controlled[i/64] >> (i % 64)))
	}
	return h.word(r.ID).sum()
}
