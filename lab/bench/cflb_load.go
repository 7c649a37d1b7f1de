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
	"github.com/detour-collective/dcol/lab/stats"
)

// Parameters of the generated traffic. The published traces are not public.
const (
	loadSeconds = 40
	loadFlows   = 15000 // flows that begin in a second
	loadTail    = 1.2   // exponent of the packets of a flow, after measurements of Internet traffic
	loadLargest = 20000
	loadRate    = 100 // packets of a flow in a second, at most
)

// generatedFlow is a flow with its number of packets in each second.
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

// chooser returns a flow's next hop at a router.
type chooser func(f *generatedFlow, at balancer, hops int) int

// balancer is a router that balances load. ttl is the time to live with which packets arrive there.
type balancer struct {
	id  uint32
	ttl uint8
}

// one is the router in the experiments that have only one.
var one = balancer{id: 1, ttl: 60}

// crc16 is CRC-16/ARC, which routers compute in hardware.
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
		"MD5": func(f *generatedFlow, at balancer, hops int) int {
			sum := md5.Sum(append(f.serialised[:], byte(at.id)))
			return int(binary.BigEndian.Uint32(sum[:]) % uint32(hops))
		},
		"CRC16": func(f *generatedFlow, at balancer, hops int) int {
			return int(crc16(append(f.serialised[:], byte(at.id)))) % hops
		},
	}
	names = []string{"CRC16", "MD5"}
	for _, c := range []cflb.Cipher{cflb.Speck, cflb.RC5, cflb.Skip32} {
		s, err := schemeOf(4, c)
		if err != nil {
			return nil, nil, err
		}
		name := "CFLB with " + string(c)
		names = append(names, name)
		all[name] = func(f *generatedFlow, at balancer, hops int) int {
			return cflb.Router{Scheme: s, ID: at.id}.Next(cflb.OfPorts(f.source, f.server), f.uncontrolled, at.ttl, hops)
		}
	}
	return names, all, nil
}

// loadDistribution computes by how much each second's load on a next hop differs from its share, for flows that nobody
// controls (figures 5.9 and 5.10).
func loadDistribution(context.Context, Options) (found []Measurement, err error) {
	flows := generateFlows()
	names, all, err := choosers()
	if err != nil {
		return nil, err
	}
	for _, hops := range []int{2, 4} {
		baseline := 0.0
		for _, name := range []string{"MD5", "CRC16", names[2], names[3], names[4]} {
			deviations := deviationsOf(flows, 1, hops, func(f *generatedFlow) int { return all[name](f, one, hops) })
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
	return append(found, loadInARow(flows, names, all)...), nil
}

// loadInARow computes the same behind four balancers of two next hops in a row, for each half second (figure 5.9(b)):
// by how much the load on one of the 16 paths differs from a sixteenth.
func loadInARow(flows []generatedFlow, names []string, all map[string]chooser) (found []Measurement) {
	const length, hops = 4, 2
	baseline := 0.0
	for _, name := range []string{"MD5", "CRC16", names[2], names[3], names[4]} {
		deviations := deviationsOf(flows, 2, 1<<length, func(f *generatedFlow) int {
			at := balancer{id: 1, ttl: one.ttl} // the routers behind number id are 2*id and 2*id+1
			for range length {
				at = balancer{id: at.id*hops + uint32(all[name](f, at, hops)), ttl: at.ttl - 1}
			}
			return int(at.id) - 1<<length
		})
		m := of(fmt.Sprintf("cflb load behind %d balancers in a row: largest deviation in half a second, %s", length, name), "% of packets", deviations)
		if name == "MD5" {
			baseline = m.Value
		} else {
			m = m.against(baseline)
		}
		if name == names[2] {
			m = m.target("≤ 1.1 of MD5's", m.Value <= 1.1*baseline)
		}
		m.Note = fmt.Sprintf("of 16 ways; in nine of ten half seconds at most %.2f; generated flows; the baseline is MD5; published: no worse than hash-based",
			stats.Quantile(deviations, 0.9))
		found = append(found, m)
	}
	return found
}

// deviationsOf returns the largest deviation in each part of a second, in percent of its packets. The first seconds are left
// out: long flows have not begun.
func deviationsOf(flows []generatedFlow, parts, ways int, choose func(*generatedFlow) int) (deviations []float64) {
	counts := make([][]int, loadSeconds*parts)
	for i := range counts {
		counts[i] = make([]int, ways)
	}
	for i := range flows {
		f := &flows[i]
		way := choose(f)
		for slot, left := f.begins*parts+i%parts, f.packets; left > 0 && slot < len(counts); slot++ {
			counts[slot][way] += min(left, loadRate/parts)
			left -= loadRate / parts
		}
	}
	const warmUp = 10
	for _, c := range counts[warmUp*parts:] {
		total := 0
		for _, n := range c {
			total += n
		}
		worst := 0.0
		for _, n := range c {
			worst = max(worst, math.Abs(100*float64(n)/float64(total)-100/float64(ways)))
		}
		deviations = append(deviations, worst)
	}
	return deviations
}
