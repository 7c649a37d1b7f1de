package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/paths"
	"github.com/detour-collective/dcol/lab/bench/balanced"
)

// cflbRuns is the number of runs of each experiment that is computed, as published.
const cflbRuns = 400

// pathsByPorts measures the choice of paths by ports: what is computed, then what is measured on a network.
func pathsByPorts(ctx context.Context, o Options) (found []Measurement, err error) {
	for _, part := range []func(context.Context, Options) ([]Measurement, error){
		sevenLinks, steeredDiscovery, missedPaths, loadDistribution, forwardingRate, besideScamper, dataCentres,
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

// sevenLinks computes on how many of seven paths seven subflows are (figure 5.13): by ports of chance, and by ports
// that are computed.
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

// steeredDiscovery counts the probes of algorithm 5.3, and those of Paris traceroute's algorithm, on the published
// networks (section 5.6.2).
func steeredDiscovery(ctx context.Context, _ Options) (found []Measurement, err error) {
	const most = 40
	for _, c := range []struct{ routers, width, ours, paris int }{{6, 2, 34, 1492}, {3, 4, 29, 296}} {
		s, err := schemeOf(c.width, cflb.Speck)
		if err != nil {
			return found, err
		}
		g := balanced.Ladder(c.routers, c.width)
		net, err := cflb.Discover(s.Radix(), paths.DefaultHops, g.Steered(s))
		if err != nil {
			return found, err
		}
		complete := len(net.Edges) == g.Edges()+1
		m := once(fmt.Sprintf("cflb discovery, %d routers of %d next hops", c.routers, c.width), "probes", float64(net.Probes)).
			against(float64(c.paris)).target(fmt.Sprintf("≤ %d, complete", most), net.Probes <= most && complete)
		m.Note = fmt.Sprintf("the baseline is Paris traceroute as published; published for CFLB: %d; the published network is "+
			"not given in full, so ours may differ in routers without choice", c.ours)
		found = append(found, m)
		var probes []float64
		for seed := range uint64(21) {
			w := &balanced.Hashing{Graph: g, Seed: seed}
			if _, err := paths.Explore(ctx, w, paths.Options{PerRouter: true}); err != nil {
				return found, err
			}
			probes = append(probes, float64(w.Sent()))
		}
		m = of(fmt.Sprintf("cflb multipath detection without CFLB, %d routers of %d next hops", c.routers, c.width), "probes", probes).
			against(float64(c.paris))
		m.Note = "bound of 5 % at each router, computed; the baseline is Paris traceroute as published"
		found = append(found, m)
	}
	return found, nil
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
