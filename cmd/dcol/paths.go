package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/paths"
	"github.com/detour-collective/dcol/internal/paths/present"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/wire"
)

// pathsFlags are the flags of `dcol paths`.
type pathsFlags struct {
	where         traceFlags // -4, -6, the interface and the number of hops
	port          int
	udp           bool
	bound         float64
	perRouter     bool
	light         bool
	probes, ways  int
	measure       int
	session       int
	asJSON, asSVG bool
	radix, ttl    int
	parallel      bool
	cipher        string
	secretFile    string
}

func pathsCommand() *cobra.Command {
	var f pathsFlags
	cmd := &cobra.Command{
		Use:   "paths DESTINATION",
		Short: "Find the load-balanced paths to a host, and the source ports that lead to each",
		Long: `Routers with several equally good next hops choose among them by a flow's addresses and
ports. The command sends probes of many source ports, whose time to live ends at each hop,
until further next hops are improbable. It prints the graph of routers, and source ports that
lead to distinct paths. It needs root.

Routers that balance load by CFLB, with known constants, need few probes: --radix and
--secret-file. docs/paths.md explains all of it.`,
		Example: `  dcol paths server.example
  dcol paths --svg server.example > paths.svg
  dcol paths calibrate topology.txt`,
		Args: cli.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
	flags := cmd.Flags()
	flags.IntVar(&f.port, "port", 443, "the destination's `port`")
	flags.BoolVar(&f.udp, "udp", false, "send UDP; routers may choose other paths for it than for TCP")
	flags.BoolVarP(&f.where.four, "ipv4", "4", false, "use IPv4")
	flags.BoolVarP(&f.where.six, "ipv6", "6", false, "use IPv6")
	flags.IntVar(&f.where.hops, "hops", paths.DefaultHops, "the `number` of hops at most")
	flags.StringVarP(&f.where.device, "interface", "i", "", "the `interface` to send from")
	flags.Float64Var(&f.bound, "bound", paths.DefaultBound, "the largest `probability` that anything is missed")
	flags.BoolVar(&f.perRouter, "per-router", false, "the bound is for each router, as in other programs")
	flags.BoolVar(&f.light, "light", false, "send fewer probes, and assume that the routers of a hop are alike")
	flags.IntVar(&f.probes, "max-probes", paths.DefaultProbes, "the `number` of probes at most")
	flags.IntVar(&f.ways, "ports", 8, "for how many distinct paths to print `ports`")
	flags.IntVar(&f.measure, "measure", 0, "measure loss and round trips by so many `probes` of each path")
	flags.IntVar(&f.session, "session", 0, "find a port whose probes share the path of the connection from this `port`")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON ("+present.Schema+")")
	flags.BoolVar(&f.asSVG, "svg", false, "print a drawing")
	flags.IntVar(&f.radix, "radix", 0, "the `radix` of CFLB routers on the path")
	flags.BoolVar(&f.parallel, "parallel", false, "try all next hops: CFLB routers may have several links to one that answers with one address")
	flags.StringVar(&f.cipher, "cipher", string(cflb.Speck), "the `cipher` of CFLB routers")
	flags.StringVar(&f.secretFile, "secret-file", "", "the `file` with the secret of CFLB routers")
	flags.IntVar(&f.ttl, "ttl", 64, "the initial time to live of `packets` that the printed ports of CFLB are for")
	cmd.MarkFlagsMutuallyExclusive("ipv4", "ipv6")
	cmd.MarkFlagsMutuallyExclusive("json", "svg")
	cmd.MarkFlagsRequiredTogether("radix", "secret-file")
	cmd.AddCommand(calibrateCommand(), pathsServeCommand(), pathsFlowCommand())
	return cmd
}

// mostMeasured bounds the probes of each path: at 20 a second, some minutes.
const mostMeasured = 10000

func (f *pathsFlags) check() error {
	switch {
	case f.port < 1 || f.port > 65535:
		return fmt.Errorf("--port must be between 1 and 65535, not %d", f.port)
	case f.where.hops < 1 || f.where.hops > trace.MaxHops:
		return fmt.Errorf("--hops must be between 1 and %d, not %d", trace.MaxHops, f.where.hops)
	case !(f.bound >= paths.MinBound && f.bound <= 0.5):
		return fmt.Errorf("--bound must be between %v and 0.5, not %v", paths.MinBound, f.bound)
	case f.ways < 0:
		return fmt.Errorf("--ports must not be negative, as %d is", f.ways)
	case f.probes < 1:
		return fmt.Errorf("--max-probes must be at least 1, not %d", f.probes)
	case f.measure < 0 || f.measure > mostMeasured:
		return fmt.Errorf("--measure must be between 0 and %d, not %d", mostMeasured, f.measure)
	case f.session < 0 || f.session > 65535:
		return fmt.Errorf("--session must be a connection's port at this host, between 1 and 65535, not %d", f.session)
	case f.ttl < 1 || f.ttl > 255:
		return fmt.Errorf("--ttl must be between 1 and 255, not %d", f.ttl)
	}
	return nil
}

// scheme returns the constants of CFLB routers, or nil if none were given.
func (f *pathsFlags) scheme() (*cflb.Scheme, error) {
	if f.secretFile == "" {
		return nil, nil
	}
	secret, err := os.ReadFile(f.secretFile)
	if err != nil {
		return nil, fmt.Errorf("read the secret: %w", err)
	}
	p, err := cflb.NewPermutation(cflb.Cipher(f.cipher), cflb.PortsOnly.Bits(), bytes.TrimSpace(secret))
	if err != nil {
		return nil, fmt.Errorf("--cipher: %w", err)
	}
	s, err := cflb.New(f.radix, p)
	if err != nil {
		return nil, fmt.Errorf("--radix: %w", err)
	}
	return s, nil
}

func (f *pathsFlags) run(ctx context.Context, destination string) error {
	if err := f.check(); err != nil {
		return err
	}
	scheme, err := f.scheme()
	if err != nil {
		return err
	}
	addr, err := f.where.resolve(ctx, destination, false, false)
	if err != nil {
		return err
	}
	conn, err := wire.Open(addr, f.where.device)
	if err != nil {
		return err
	}
	defer conn.Close()
	r := present.Report{Name: destination, Source: conn.Source(), Destination: addr, Protocol: "tcp", Port: uint16(f.port)}
	t := paths.Template{
		Source: conn.Source(), Destination: addr, Protocol: packet.ProtocolTCP, Port: uint16(f.port),
		Random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	}
	if f.udp {
		t.Protocol, r.Protocol = packet.ProtocolUDP, "udp"
	}
	start := time.Now()
	prober := paths.NewWire(conn, t)
	var failure error
	patiently(always(probeAnswers), func() { failure = f.explore(ctx, prober, scheme, &r) })
	if failure != nil && (r.Graph == nil || !errors.Is(failure, paths.ErrProbes) && !errors.Is(failure, cflb.ErrProbes)) {
		return failure
	}
	if failure != nil {
		r.Notes = append(r.Notes, failure.Error()+", so the graph is incomplete")
	}
	patiently(always(probeAnswers), func() { err = f.measurePaths(ctx, prober, &r) })
	if err != nil {
		return err
	}
	r.Took = time.Since(start)
	switch {
	case f.asJSON:
		return printJSON(present.JSON(r))
	case f.asSVG:
		return present.SVG(os.Stdout, r)
	}
	return present.Text(os.Stdout, r)
}

// explore finds the graph, and flows on distinct paths. With --session, it also finds a flow that shares
// the path of that connection.
func (f *pathsFlags) explore(ctx context.Context, w *paths.Wire, s *cflb.Scheme, r *present.Report) (err error) {
	var found []paths.Path
	var routed *paths.Routed
	if s != nil {
		routed, err = paths.DiscoverRouted(ctx, w, s, cflb.Options{MaxDistance: f.where.hops, Parallel: f.parallel}, uint8(f.ttl))
		r.Graph, found = routed.Graph, routed.Paths[:min(len(routed.Paths), f.ways)]
		r.Notes = append(r.Notes, notesOf(routed)...)
	} else {
		r.Graph, err = paths.Explore(ctx, w, paths.Options{
			Bound: f.bound, PerRouter: f.perRouter, Light: f.light, Ways: f.ways, MaxHops: f.where.hops, MaxProbes: f.probes,
		})
		if r.Graph != nil {
			found = r.Graph.Distinct(f.ways)
		}
	}
	for _, p := range found {
		r.Distinct = append(r.Distinct, present.Line{Ports: w.Ports(p.Flow), Vertices: p.Vertices})
	}
	if err != nil || f.session == 0 {
		return err
	}
	var shared paths.Path
	var flow int
	if s != nil {
		shared, flow, err = paths.RoutedShared(w, s, routed.Network, r.Graph, uint16(f.session), uint8(f.ttl))
	} else {
		session := w.Add(paths.Ports{Source: uint16(f.session), Destination: uint16(f.port)})
		shared, flow, err = paths.Shared(ctx, w, r.Graph, session)
	}
	if err != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("no probes share the path of the connection from port %d: %v", f.session, err))
		return nil
	}
	r.Session = &present.Session{Port: uint16(f.session), Probe: present.Line{Ports: w.Ports(flow), Vertices: shared.Vertices}}
	return nil
}

// notesOf returns a sentence for each doubt about paths through CFLB routers.
func notesOf(r *paths.Routed) (notes []string) {
	for _, s := range r.Network.Suspects {
		notes = append(notes, fmt.Sprintf("%v: %s", shownAddr(s.Router), s.Reason))
	}
	if r.Unled > 0 {
		notes = append(notes, fmt.Sprintf("no source port leads along %d of the paths: too many routers on them choose", r.Unled))
	}
	return notes
}

// measurePaths measures the paths that were found, if --measure is set.
func (f *pathsFlags) measurePaths(ctx context.Context, w *paths.Wire, r *present.Report) error {
	if f.measure == 0 {
		return nil
	}
	if !r.Graph.Reached {
		r.Notes = append(r.Notes, "nothing was measured, because the destination does not answer")
		return nil
	}
	var lines []*present.Line
	for i := range r.Distinct {
		lines = append(lines, &r.Distinct[i])
	}
	if r.Session != nil {
		lines = append(lines, &r.Session.Probe)
	}
	var flows []int
	for _, l := range lines {
		flows = append(flows, w.Add(l.Ports))
	}
	all, err := paths.Measure(ctx, w, flows, f.measure, uint8(f.ttl))
	for i := range all {
		lines[i].Quality = &all[i]
	}
	return err
}

func shownAddr(a netip.Addr) string {
	if !a.IsValid() {
		return "this host"
	}
	return a.String()
}
