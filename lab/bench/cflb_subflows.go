package bench

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

const (
	subflowRuns     = 40 // of seven subflows, by chance and by choice
	goodputRuns     = 6  // for each number of subflows
	subflowLinks    = 7
	subflowRate     = 20e6 // bit/s of each interface of the destination
	subflowWarmUp   = 2 * time.Second
	subflowMeasured = 3 * time.Second
	secondRouter    = "second"
	subflowTTL      = 64 // initial
)

// subflowServer is an address on no link, so that it is reached over all links.
var subflowServer = netip.MustParseAddrPort("198.18.0.1:5000")

// subflowsOnLinks runs MPTCP connections over seven links between two routers (figure 5.13). It then replaces one of
// the links by one to the server, so that the server has two interfaces (figures 5.14 and 5.15).
func subflowsOnLinks(ctx context.Context, o Options) (found []Measurement, err error) {
	for _, part := range []struct {
		direct  bool
		measure func(context.Context, *placed) ([]Measurement, error)
	}{{false, realSevenLinks}, {true, twoInterfaces}} {
		more, err := onPlaced(ctx, o, part.direct, part.measure)
		if found = append(found, more...); err != nil {
			return found, err
		}
	}
	return found, nil
}

// realSevenLinks counts the links that the SYNs of seven subflows take.
func realSevenLinks(ctx context.Context, p *placed) ([]Measurement, error) {
	var links [2][]float64
	all := 0
	err := inTurns(subflowRuns, 2, func(_, i int) error {
		c, ports, err := p.connect(ctx, subflowLinks, i == 1)
		if err != nil {
			return err
		}
		defer c.Close()
		n, err := p.linksOf(ctx, ports)
		if links[i] = append(links[i], float64(n)); i == 1 && n == subflowLinks {
			all++
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var byChance [subflowLinks + 1]int
	for _, n := range links[0] {
		byChance[int(n)]++
	}
	m := of("cflb seven MPTCP subflows, by chosen ports", "links", links[1]).against(average(links[0])).
		target("7 in each run", all == subflowRuns)
	m.Note = fmt.Sprintf("real subflows over a router on the kernel's multipath routing; the baseline is the average by ports of chance, "+
		"which took 3, 4, 5, 6 and 7 links in %d, %d, %d, %d and %d of %d runs", byChance[3], byChance[4], byChance[5], byChance[6], byChance[7], subflowRuns)
	return []Measurement{m}, nil
}

func average(values []float64) (sum float64) {
	for _, v := range values {
		sum += v / float64(len(values))
	}
	return sum
}

// twoInterfaces measures uploads to a server whose two interfaces are the bottlenecks. One of seven next hops leads to
// the first interface, six lead to the second.
func twoInterfaces(ctx context.Context, p *placed) (found []Measurement, err error) {
	counts := []int{2, 2, 3, 4, 5, 6, 7} // the first with chosen ports
	goodput := make([][]float64, len(counts))
	err = inTurns(goodputRuns, len(counts), func(_, i int) error {
		c, _, err := p.connect(ctx, counts[i], i == 0)
		if err != nil {
			return err
		}
		defer c.Close()
		v, err := p.upload(ctx, c)
		goodput[i] = append(goodput[i], v/(2*subflowRate))
		return err
	})
	if err != nil {
		return nil, err
	}
	chosen := average(goodput[0])
	for i, n := range counts {
		kind := "ports of chance"
		if i == 0 {
			kind = "chosen ports"
		}
		m := of(fmt.Sprintf("cflb two interfaces of the destination, %d subflows by %s", n, kind), "of both interfaces", goodput[i])
		m.Value = average(goodput[i])
		m.Note = "average of uploads; goodput without headers, so at most 0.97"
		if i == 0 {
			m = m.target("≥ 0.9", m.Value >= 0.9)
		} else {
			m = m.against(chosen)
			m.Note += fmt.Sprintf("; the baseline is 2 subflows by chosen ports; both interfaces are in use in %.0f %% of all choices",
				100*(1-chanceOfOne(n)))
		}
		simulated := once(fmt.Sprintf("cflb two interfaces of the destination, %d subflows by %s, simulated", n, kind),
			"of both interfaces", simulatedInterfaces(n, i == 0)).against(m.Value)
		simulated.Note = "the same network in the simulator; the baseline is the measured average"
		found = append(found, m, simulated)
	}
	return found, nil
}

// chanceOfOne returns the probability that subflows with random ports use only one of the two interfaces.
func chanceOfOne(subflows int) float64 {
	first, second := 1.0, 1.0
	for range subflows {
		first, second = first/subflowLinks, second*(subflowLinks-1)/subflowLinks
	}
	return first + second
}
