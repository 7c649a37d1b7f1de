package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/paths"
	"github.com/detour-collective/dcol/lab/bench/balanced"
	"github.com/detour-collective/dcol/lab/stats"
)

// cflbRuns is the number of runs of each experiment that is computed, as published.
const cflbRuns = 400

// pathsByPorts measures the choice of paths by ports: first computed, then on a network.
func pathsByPorts(ctx context.Context, o Options) (found []Measurement, err error) {
	for _, part := range []func(context.Context, Options) ([]Measurement, error){
		sevenLinks, subflowsOnLinks, steeredDiscovery, missedPaths, loadDistribution, forwardingRate, besideScamper, dataCentres,
	} {
		more, err := part(ctx, o)
		if found = append(found, more...); err != nil {
			return found, err
		}
	}
	return found, nil
}

func schemeOf(radix int, c cflb.Cipher) (*cflb.Scheme, error) {
	p, err := cflb.NewPermutation(c, cflb.PortsOnly.Bits(), []byte("bench"))
	if err != nil {
		return nil, err
	}
	return cflb.New(radix, p)
}

// sevenLinks computes on how many of seven paths seven subflows are (figure 5.13), with random ports and with computed
// ports.
func sevenLinks(context.Context, Options) (found []Measurement, err error) {
	const links, ttl, server = 7, 64, 443
	published := map[int]float64{4: 35.7, 5: 42.8, 6: 12.9, 7: 0.6}
	s, err := schemeOf(links, cflb.Speck)
	if err != nil {
		return nil, err
	}
	router := cflb.Router{Scheme: s, ID: 1}
	random := rand.New(rand.NewPCG(1, 513))
	var chance, chosen [links + 1]int
	for range cflbRuns {
		u := cflb.Flow(randomAddr(random), randomAddr(random), 6)
		byChance, byChoice := map[int]bool{}, map[int]bool{}
		for i := range links {
			port := uint16(32768 + random.IntN(28232))
			byChance[router.Next(cflb.OfPorts(port, server), u, ttl, links)] = true
			ports, err := s.SourcePorts(cflb.EncodeFlow([]int{i}, ttl), u, server, 32768, 60999, 1)
			if err != nil || len(ports) == 0 {
				return nil, fmt.Errorf("no port leads to link %d: %w", i, err)
			}
			byChoice[router.Next(cflb.OfPorts(ports[0], server), u, ttl, links)] = true
		}
		chance[len(byChance)]++
		chosen[len(byChoice)]++
	}
	all := once("cflb seven subflows on seven paths", "of all runs", float64(chosen[links])/cflbRuns).
		against(float64(chance[links])/cflbRuns).target("1", chosen[links] == cflbRuns)
	all.Repetitions = cflbRuns
	all.Note = "the baseline is ports of chance; computed with the real functions, no packets"
	found = append(found, all)
	for n := 4; n <= links; n++ {
		m := once(fmt.Sprintf("cflb ports of chance on %d of seven paths", n), "%", 100*float64(chance[n])/cflbRuns).against(published[n])
		m.Repetitions, m.Note = cflbRuns, "the baseline is published"
		found = append(found, m)
	}
	return found, nil
}

func randomAddr(r *rand.Rand) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
}

// ladderSeeds is the number of networks of each kind on which multipath detection is run.
const ladderSeeds = 21

// steeredDiscovery counts the probes of algorithm 5.3, and those of Paris traceroute's algorithm, on one to eight routers
// in a row with two and with four next hops (section 5.6.2).
func steeredDiscovery(ctx context.Context, _ Options) (found []Measurement, err error) {
	published := map[[2]int][2]int{{6, 2}: {34, 1492}, {3, 4}: {29, 296}} // probes of CFLB and of Paris traceroute
	for _, width := range []int{2, 4} {
		s, err := schemeOf(width, cflb.Speck)
		if err != nil {
			return found, err
		}
		for routers := 1; routers <= 8; routers++ {
			g := balanced.Ladder(routers, width)
			net, err := cflb.Discover(cflb.Options{Radix: s.Radix(), MaxDistance: paths.DefaultHops}, g.Steered(s))
			if err != nil {
				return found, err
			}
			probes, complete, err := detected(ctx, g)
			if err != nil {
				return found, err
			}
			all := len(net.Edges) == g.Edges()+1
			m := once(fmt.Sprintf("cflb discovery, %d routers of %d next hops", routers, width), "probes", float64(net.Probes))
			m.Note = fmt.Sprintf("complete: %v; without CFLB, multipath detection with a bound of 5 %% at each router took %.0f and "+
				"found all in %d of %d networks", all, probes, complete, ladderSeeds)
			if p, ok := published[[2]int{routers, width}]; ok {
				const most = 40
				m = m.against(float64(p[1])).target(fmt.Sprintf("≤ %d, complete", most), all && net.Probes <= most)
				m.Note += fmt.Sprintf("; the baseline is Paris traceroute as published; published for CFLB: %d; the published "+
					"network is not given in full, so ours may differ in routers without choice", p[0])
			} else {
				m = m.against(probes).target("complete", all)
				m.Note += ", which is the baseline"
			}
			found = append(found, m)
		}
	}
	return found, nil
}

// detected returns the median number of probes of multipath detection, and in how many networks it found everything.
func detected(ctx context.Context, g balanced.Graph) (probes float64, complete int, err error) {
	var all []float64
	for seed := range uint64(ladderSeeds) {
		w := &balanced.Hashing{Graph: g, Seed: seed}
		seen, err := paths.Explore(ctx, w, paths.Options{PerRouter: true})
		if err != nil && !errors.Is(err, paths.ErrProbes) {
			return 0, 0, err
		}
		if err == nil && g.Missing(seen) == 0 {
			complete++
		}
		all = append(all, float64(w.Sent()))
	}
	return stats.Summarize(all).Median, complete, nil
}

// missedPaths counts the runs in which dcol paths misses something.
func missedPaths(ctx context.Context, _ Options) (found []Measurement, err error) {
	networks := []struct {
		name  string
		graph balanced.Graph
	}{
		{"a diamond of four", balanced.Diamond(4)},
		{"a row of three routers with two next hops", balanced.Ladder(3, 2)},
		{"a row of three routers with four next hops", balanced.Ladder(3, 4)},
	}
	for _, n := range networks {
		missed := 0
		for seed := range uint64(cflbRuns) {
			g, err := paths.Explore(ctx, &balanced.Hashing{Graph: n.graph, Seed: seed}, paths.Options{})
			if err != nil {
				return found, err
			}
			if n.graph.Missing(g) > 0 {
				missed++
			}
		}
		share := float64(missed) / cflbRuns
		m := once("cflb runs that miss a path, "+n.name, "of all runs", share).
			target(fmt.Sprintf("≤ %v", paths.DefaultBound), share <= paths.DefaultBound)
		m.Repetitions, m.Note = cflbRuns, "computed: routers choose by chance for each flow"
		found = append(found, m)
	}
	return found, nil
}
