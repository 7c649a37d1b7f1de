package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/paths/present"
	"github.com/detour-collective/dcol/lab/testbed"
)

// balanced builds a network with a router that has so many next hops, which meet again. Its links are m1, m2, ...
func balanced(t *testing.T, width int) *testbed.Network {
	t.Helper()
	t.Parallel()
	if cannot != "" {
		t.Skip(cannot)
	}
	spec := testbed.Spec{
		Hosts: []testbed.HostSpec{
			{Name: "client"}, {Name: "first", Forward: true, Balance: true},
			{Name: "second", Forward: true, Balance: true}, {Name: "server"},
		},
		Links: []testbed.LinkSpec{{Name: "near", A: "client", B: "first"}, {Name: "far", A: "second", B: "server"}},
	}
	for i := 1; i <= width; i++ {
		name := fmt.Sprintf("m%d", i)
		spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: name, Forward: true, Balance: true})
		spec.Links = append(spec.Links, testbed.LinkSpec{Name: name, A: "first", B: name},
			testbed.LinkSpec{Name: name + "b", A: name, B: "second"})
	}
	n, err := testbed.Build(t.Context(), spec, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// findPaths runs dcol paths on the client.
func findPaths(t *testing.T, n *testbed.Network, args ...string) (p present.Paths) {
	t.Helper()
	cmd := n.Host("client").Command(t.Context(), program, append(append([]string{"paths", "--json"}, args...), "server")...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("dcol paths: %v: %s", err, errs.String())
	}
	if err := json.Unmarshal(out, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// taken returns the links m1, m2, ... that carry a connection from the client's port.
func taken(t *testing.T, n *testbed.Network, width int, p present.Paths, port uint16) (links []string) {
	t.Helper()
	sent := func() (all []uint64) {
		for i := 1; i <= width; i++ {
			out, _, err := n.LinkStats(fmt.Sprintf("m%d", i))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, out.Packets)
		}
		return all
	}
	before := sent()
	err := n.Host("client").Do(func() error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{Port: int(port)}, Timeout: 20 * time.Second}
		c, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort(p.Destination, fmt.Sprint(p.Port)))
		if err == nil {
			err = errors.Join(errors.New("the server has no such port"), c.Close())
		}
		if !strings.Contains(err.Error(), "refused") {
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, now := range sent() {
		if now > before[i] {
			links = append(links, fmt.Sprintf("m%d", i+1))
		}
	}
	return links
}

// TestPathsByPorts: on the kernel's own multipath routing, dcol paths finds all paths, and connections from the ports
// that it names take each another one.
func TestPathsByPorts(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"-4", "-6"} {
		t.Run(version, func(t *testing.T) {
			const width = 4
			n := balanced(t, width)
			p := findPaths(t, n, version, "--bound", "0.0001")
			if !p.Reached || p.Count != width || len(p.Hops) != 4 || len(p.Distinct) != width {
				t.Fatalf("reached %v, %d paths, %d hops, ports of %d: %+v", p.Reached, p.Count, len(p.Hops), len(p.Distinct), p)
			}
			seen := map[string]uint16{}
			for _, d := range p.Distinct {
				links := taken(t, n, width, p, d.SourcePort)
				// Others' packets, such as neighbour discovery, take a link now and then.
				for try := 1; len(links) != 1 && try < 5; try++ {
					links = taken(t, n, width, p, d.SourcePort)
				}
				if len(links) != 1 {
					t.Fatalf("port %d takes the links %v", d.SourcePort, links)
				}
				if other := seen[links[0]]; other != 0 {
					t.Errorf("ports %d and %d both take %s", d.SourcePort, other, links[0])
				}
				seen[links[0]] = d.SourcePort
			}
			drawing := n.Host("client").Command(t.Context(), program, "paths", "--svg", version, "server")
			if out, err := drawing.Output(); err != nil || !strings.Contains(string(out), "</svg>") {
				t.Errorf("dcol paths --svg: %v, %.100s", err, out)
			}
		})
	}
}
