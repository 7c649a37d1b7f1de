package bench

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/paths/present"
	"github.com/detour-collective/dcol/lab/bench/balanced"
	"github.com/detour-collective/dcol/lab/testbed"
)

// besideScamper compares the number of packets of dcol paths and of scamper's tracelb, which has the same algorithm.
// They take turns on the kernel's multipath routing, with the same bound and kind of probes.
func besideScamper(ctx context.Context, o Options) (found []Measurement, err error) {
	if program, _ := exec.LookPath("scamper"); program == "" {
		fmt.Fprintln(o.Stderr, "bench cflb: scamper is not installed: nothing to compare with")
		return nil, nil
	}
	for _, n := range []struct {
		name  string
		graph balanced.Graph
	}{
		{"a diamond of four", balanced.Diamond(4)},
		{"a row of three routers with two next hops", balanced.Ladder(3, 2)},
	} {
		more, err := compareOn(ctx, o, n.name, n.graph)
		if found = append(found, more...); err != nil {
			return found, err
		}
	}
	return found, nil
}

// openBalanced builds a network from a graph. Router i is called ri.
func openBalanced(ctx context.Context, o Options, g balanced.Graph) (*testbed.Network, error) {
	spec := testbed.Spec{Hosts: []testbed.HostSpec{{Name: "client"}}, Backend: testbed.BackendEmulator}
	name := func(i int) string {
		if len(g[i]) == 0 {
			return serverHost
		}
		return routerName(i)
	}
	spec.Links = append(spec.Links, testbed.LinkSpec{Name: "near", A: "client", B: name(0)})
	for i, next := range g {
		spec.Hosts = append(spec.Hosts, testbed.HostSpec{
			Name: name(i), Forward: len(next) > 0, Balance: len(next) > 0,
			Sysctls: map[string]string{"net.ipv4.icmp_ratelimit": "0"}, // no limit: the number of probes is compared
		})
	}
	// The destination's first link has its address.
	for to := len(g) - 1; to >= 0; to-- {
		for from, next := range g {
			if slices.Contains(next, to) {
				spec.Links = append(spec.Links, testbed.LinkSpec{Name: fmt.Sprintf("l%d-%d", from, to), A: name(from), B: name(to)})
			}
		}
	}
	return testbed.Build(ctx, spec, o.Log)
}

// lanScript creates a namespace behind a host. The link to it has Ethernet addresses, without which scamper sends
// nothing. The script prints the id of the process that holds the namespace.
//
//go:embed lan.sh
var lanScript string

var scamperProbes = regexp.MustCompile(`"probec":\s*(\d+)`)

func compareOn(ctx context.Context, o Options, name string, g balanced.Graph) (found []Measurement, err error) {
	n, err := openBalanced(ctx, o, g)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	repetitions := o.Repetitions
	if repetitions == 0 {
		repetitions = 5
	}
	server := n.Host(serverHost).Addr4().String()
	counts := make([][]float64, 3)
	edges := make([]int, 3)
	holder, err := n.Host("client").Command(ctx, "sh", "-c", lanScript).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("add a namespace: %w: %s", err, holder)
	}
	run := func(args ...string) (string, error) {
		limited, cancel := context.WithTimeout(ctx, 3*time.Minute)
		defer cancel()
		args = append([]string{"nsenter", fmt.Sprintf("--net=/proc/%s/ns/net", bytes.TrimSpace(holder))}, args...)
		out, err := n.Host("client").Command(limited, args[0], args[1:]...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%v: %w: %s", args, err, out)
		}
		return string(out), nil
	}
	err = inTurns(repetitions, len(counts), func(_, i int) error {
		if i == 2 {
			out, err := run("scamper", "-n", "127.0.0.1", "-p", "200", "-O", "json", "-I", "tracelb -P udp-sport -c 95 -W 15 -w 1 -d 33434 "+server)
			if err != nil {
				return err
			}
			match := scamperProbes.FindStringSubmatch(out)
			if match == nil {
				return fmt.Errorf("scamper's output has no number of probes: %s", out)
			}
			probes, err := strconv.ParseFloat(match[1], 64)
			counts[i] = append(counts[i], probes)
			edges[i] += strings.Count(out, `"addr":`)
			return err
		}
		args := []string{o.Programs.DCol, "paths", "--json", "--udp", "--port", "33434", "--per-router", "--ports", "0", server}
		if i == 1 {
			args = append(args, "--light")
		}
		out, err := run(args...)
		if err != nil {
			return err
		}
		var p present.Paths
		if err := json.Unmarshal([]byte(out), &p); err != nil {
			return fmt.Errorf("read dcol's output: %w", err)
		}
		counts[i] = append(counts[i], float64(p.Sent))
		for _, h := range p.Hops {
			edges[i] += len(h.Vertices)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	scamper := of("cflb packets of scamper's tracelb, "+name, "packets", counts[2])
	for i, kind := range []string{"packets of dcol paths, ", "packets of dcol paths --light, "} {
		m := of("cflb "+kind+name, "packets", counts[i])
		if scamper.Value > 0 {
			m = m.against(scamper.Value)
			m = m.target("≤ 1.1 of scamper's", *m.Ratio <= 1.1)
		}
		m.Note = fmt.Sprintf("bound of 5 %% at each router, UDP; addresses found in all runs: %d, scamper %d", edges[i], edges[2])
		found = append(found, m)
	}
	return append(found, scamper), nil
}
