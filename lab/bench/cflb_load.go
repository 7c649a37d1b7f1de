package bench

import (
	"context"
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/cflb"
)

// Parameters of the generated traffic. The published traces are not public.
const (
	loadSeconds = 40
	loadFlows   = 15000 // that begin in a second
	loadTail    = 1.2   // exponent of the packets of a flow, after measurements of Internet traffic
	loadLargest = 20000
	loadRate    = 100 // packets of a flow in a second, at most
)

// generatedFlow is a flow with its packets in each second.
type generatedFlow struct {
	src, dst         netip.Addr
	source, server   uint16
	begins, packets  int
	uncontrolled     cflb.Uncontrolled
	serialised       [13]byte
	protocolOfPacket uint8
}

func generateFlows() (all []generatedFlow) {
	random := rand.New(rand.NewPCG(1, 59))
	for second := range loadSeconds {
		for range loadFlows {
			f := generatedFlow{
				src: randomAddr(random), dst: randomAddr(random), source: uint16(1024 + random.IntN(64512)), server: 443,
				begins: second, protocolOfPacket: 6,
			}
			if random.IntN(4) == 0 {
				f.server = uint16(random.IntN(1024))
			}
			f.packets = int(min(loadLargest, math.Pow(1-random.Float64(), -1/loadTail)))
			f.uncontrolled = cflb.Flow(f.src, f.dst, f.protocolOfPacket)
			src, dst := f.src.As4(), f.dst.As4()
			b := append(append(f.serialised[:0], src[:]...), dst[:]...)
			b = append(b, f.protocolOfPacket)
			b = binary.BigEndian.AppendUint16(b, f.source)
			_ = binary.BigEndian.AppendUint16(b, f.server)
			all = append(all, f)
		}
	}
	return all
}

// chooser returns a flow's next hop.
type chooser func(f *generatedFlow, hops int) int

// crc16 is CRC-16/ARC, which routers have in hardware.
func crc16(b []byte) (crc uint16) {
	for _, x := range b {
		crc ^= uint16(x)
		for range 8 {
			low := crc & 1
			if crc >>= 1; low != 0 {
				crc ^= 0xa001
			}
		}
	}
	return crc
}

func choosers() (names []string, all map[string]chooser, err error) {
	all = map[string]chooser{
		"MD5": func(f *generatedFlow, hops int) int {
			sum := md5.Sum(f.serialised[:])
			return int(binary.BigEndian.Uint32(sum[:]) % uint32(hops))
		},
		"CRC16": func(f *generatedFlow, hops int) int { return int(crc16(f.serialised[:])) % hops },
	}
	names = []string{"CRC16", "MD5"}
	for _, c := range []cflb.Cipher{cflb.Speck, cflb.RC5, cflb.Skip32} {
		s, err := schemeOf(4, c)
		if err != nil {
			return nil, nil, err
		}
		r := cflb.Router{Scheme: s, ID: 1}
		name := "CFLB with " + string(c)
		names = append(names, name)
		all[name] = func(f *generatedFlow, hops int) int {
			return r.Next(cflb.OfPorts(f.source, f.server), f.uncontrolled, 60, hops)
		}
	}
	return names, all, nil
}

// loadDistribution computes how far each second's load on a next hop is from its share, for flows that nobody controls
// (figures 5.9 and 5.10).
func loadDistribution(context.Context, Options) (found []Measurement, err error) {
	flows := generateFlows()
	names, all, err := choosers()
	if err != nil {
		return nil, err
	}
	for _, hops := range []int{2, 4} {
		baseline := 0.0
		for _, name := range []string{"MD5", "CRC16", names[2], names[3], names[4]} {
			deviations := deviationsOf(flows, all[name], hops)
			m := of(fmt.Sprintf("cflb load of %d next hops: largest deviation in a second, %s", hops, name), "% of packets", deviations)
			m.Value = slices.Max(deviations)
			if name == "MD5" {
				baseline = m.Value
			} else {
				m = m.against(baseline)
			}
			if name == names[2] && hops == 2 {
				m = m.target("< 4", m.Value < 4)
			}
			if name == names[2] && hops == 4 {
				m = m.target("≤ 3", m.Value <= 3)
			}
			m.Note = "generated flows; the baseline is MD5"
			found = append(found, m)
		}
	}
	return found, nil
}

// deviationsOf returns the largest deviation in each second, in percent of its packets. The first seconds are left out:
// long flows have not begun.
func deviationsOf(flows []generatedFlow, choose chooser, hops int) (deviations []float64) {
	counts := make([][]int, loadSeconds)
	for i := range counts {
		counts[i] = make([]int, hops)
	}
	for i := range flows {
		f := &flows[i]
		hop := choose(f, hops)
		for second, left := f.begins, f.packets; left > 0 && second < loadSeconds; second++ {
			counts[second][hop] += min(left, loadRate)
			left -= loadRate
		}
	}
	const warmUp = 10
	for _, c := range counts[warmUp:] {
		total := 0
		for _, n := range c {
			total += n
		}
		worst := 0.0
		for _, n := range c {
			worst = max(worst, math.Abs(100*float64(n)/float64(total)-100/float64(hops)))
		}
		deviations = append(deviations, worst)
	}
	return deviations
}
