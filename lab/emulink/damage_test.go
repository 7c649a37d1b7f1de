package emulink

import (
	"bytes"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"testing"

	codec "github.com/detour-collective/dcol/internal/packet"
)

// segmentOf returns an IP packet with a TCP segment that has the given lengths of TCP options and payload,
// and a correct checksum.
func segmentOf(version, options, payload int) []byte {
	from, to := netip.MustParseAddrPort("10.0.0.1:1000"), netip.MustParseAddrPort("10.0.0.2:2000")
	if version == 6 {
		from, to = netip.MustParseAddrPort("[fd00::1]:1000"), netip.MustParseAddrPort("[fd00::2]:2000")
	}
	draws := rand.NewPCG(uint64(payload), uint64(options))
	random := make([]byte, options+payload)
	for i := range random {
		random[i] = byte(draws.Uint64())
	}
	h := codec.TCP{Seq: uint32(draws.Uint64()), Ack: uint32(draws.Uint64()), Window: uint16(draws.Uint64()), Rest: random[:options]}
	p := codec.Segment(from, to, h, random[options:])
	if err := p.Seal(); err != nil {
		panic(err)
	}
	return p.Bytes()
}

// sumsHold reports whether the checksums of a packet are correct.
func sumsHold(data []byte) bool {
	p, err := codec.Parse(data)
	return err == nil && p.Verify() == nil
}

func TestTamperingLeavesTheChecksumRight(t *testing.T) {
	for _, version := range []int{4, 6} {
		for _, options := range []int{0, 12, 40} {
			for _, payload := range []int{1, 2, 3, 100, 1400, 1401} {
				before := segmentOf(version, options, payload)
				l := newImpairer(1, 0)
				for range 200 {
					data := bytes.Clone(before)
					if f := l.draw(Params{Impairments: Impairments{Tamper: 1}}, data); f != (fate{tampered: true}) {
						t.Fatalf("fate %+v", f)
					}
					if !sumsHold(data) {
						t.Fatalf("IPv%d, %d bytes: the checksum is wrong", version, payload)
					}
					headers := len(data) - payload
					if changed := difference(before[headers:], data[headers:]); changed != 1 {
						t.Fatalf("%d bytes of payload changed", changed)
					}
					if changed := difference(before[:headers], data[:headers]); changed > 2 {
						t.Fatalf("%d bytes of headers changed, want those of the checksum", changed)
					}
				}
			}
		}
	}
}

func TestCorruptionFlipsOneBitBehindTheIPHeader(t *testing.T) {
	for _, version := range []int{4, 6} {
		before := segmentOf(version, 12, 700)
		l := newImpairer(1, 0)
		places := map[int]bool{}
		for range 2000 {
			data := bytes.Clone(before)
			if f := l.draw(Params{Impairments: Impairments{Corrupt: 1}}, data); f != (fate{corrupted: true}) {
				t.Fatalf("fate %+v", f)
			}
			if sumsHold(data) {
				t.Fatal("TCP's checksum does not notice")
			}
			flipped := 0
			for i := range data {
				if n := bits.OnesCount8(before[i] ^ data[i]); n > 0 {
					flipped += n
					places[i] = true
				}
			}
			if flipped != 1 {
				t.Fatalf("%d bits flipped", flipped)
			}
		}
		header := len(before) - 700 - 12 - tcpMinHeader
		for place := range places {
			if place < header {
				t.Errorf("IPv%d: byte %d of the IP header was changed", version, place)
			}
		}
		if len(places) < 500 {
			t.Errorf("IPv%d: only %d places were hit", version, len(places))
		}
	}
}

func TestSharesAreThoseAskedFor(t *testing.T) {
	const n, share = 100_000, 0.03
	l := newImpairer(1, 0)
	var twice, corrupted, tampered float64
	for range n {
		f := l.draw(Params{Impairments: Impairments{Duplicate: share, Corrupt: share, Tamper: share}}, segmentOf(4, 0, 10))
		for _, c := range []struct {
			count *float64
			is    bool
		}{{&twice, f.twice}, {&corrupted, f.corrupted}, {&tampered, f.tampered}} {
			if c.is {
				*c.count++
			}
		}
	}
	for what, got := range map[string]float64{"duplicated": twice, "corrupted": corrupted, "tampered with": tampered} {
		if sigmas := (got - n*share) / math.Sqrt(n*share*(1-share)); math.Abs(sigmas) > 4 {
			t.Errorf("%v %s: %.1f standard deviations from %v", got, what, sigmas, n*share)
		}
	}
}

// Packets that are no whole TCP segment with payload stay unchanged.
func TestOnlySegmentsWithPayloadAreTamperedWith(t *testing.T) {
	udp, fragment := segmentOf(4, 0, 100), segmentOf(4, 0, 100)
	udp[ipv4ProtocolAt] = 17
	fragment[ipv4FragmentAt] = 0x20 // more fragments
	short := segmentOf(4, 0, 100)
	short[0] = 4<<4 | 15 // a header longer than the packet
	for name, data := range map[string][]byte{
		"a bare acknowledgement": segmentOf(4, 12, 0), "UDP": udp, "a fragment": fragment,
		"no IP at all": []byte("hello"), "nothing": nil, "a header cut short": short[:30],
	} {
		l := newImpairer(1, 0)
		before := bytes.Clone(data)
		if f := l.draw(Params{Impairments: Impairments{Tamper: 1}}, data); f != (fate{}) || !bytes.Equal(before, data) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// FuzzDamage gives arbitrary data, which need not be IP, to the functions that change it.
func FuzzDamage(f *testing.F) {
	f.Add(segmentOf(4, 12, 3))
	f.Add(segmentOf(6, 0, 1))
	f.Add([]byte{0x4f})
	f.Fuzz(func(t *testing.T, data []byte) {
		l := newImpairer(1, 0)
		before := bytes.Clone(data)
		fate := l.draw(Params{Impairments: Impairments{Corrupt: 1}}, data)
		if changed := difference(before, data); fate.corrupted != (changed == 1) || changed > 1 {
			t.Fatalf("%+v, and %d bytes changed", fate, changed)
		}
		before = bytes.Clone(data)
		fate = l.draw(Params{Impairments: Impairments{Tamper: 1}}, data)
		if changed := difference(before, data); fate.tampered != (changed > 0) || changed > 3 {
			t.Fatalf("%+v, and %d bytes changed", fate, changed)
		}
	})
}

func difference(a, b []byte) (n int) {
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}
