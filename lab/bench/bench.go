// Package bench measures dcol's performance and compares each figure with its target. Most figures are ratios of two
// measurements from the same run, because numbers depend on the machine. For the same reason, tests check only that the
// benchmarks work, and never how fast the machine is.
//
// A benchmark is a function that returns Measurements (measurement.go). The function benchmarks lists all of them. Run
// runs the selected ones, stores their figures in result.json and prints them as a table. Some programs of a benchmark
// run as processes of their own on the hosts of its network; they are the types with a method Run and a constant that
// ends with Part, such as Relay and RelayPart.
//
// # Words
//
//   - figure: one Measurement. Its baseline is the value with which it is compared.
//   - plan: the amount of work of a benchmark. Tests run the benchmarks with small plans.
//   - route: a path from client to server, through a router, a relay or a waypoint.
//   - to measure in turns: to measure each of several things once, then each once more, and so on (inTurns).
//
// # Which file measures what
//
//	aggregate.go                         aggregate: goodput against the sum of the paths
//	join.go                              join: time until a connection has its second subflow
//	joins.go                             joins: joins that a waypoint forwards per second
//	connections.go                       connections: many new connections per second
//	forwarding.go packets.go             forwarding: the cost of detours at a waypoint, for a transfer and for a packet
//	mappings.go original.go              mappings: 100,000 mappings, and the iptables rules of 2017
//	collective*.go projection.go         collective: a coordinator with thousands of members, and estimates for more
//	convert*.go aside.go                 convert: relays between MPTCP clients and TCP servers; requests not converted
//	selection.go selection_places.go     selection: the choice of detours in the networks of the suite
//	selection_start.go                   ... how soon good waypoints are found and bad ones left
//	selection_sharing.go selection_users.go  ... clients that share waypoints, and the users of each
//	selection_alive.go                   ... an agent with 10,000 connections
//	transport.go                         transport: its parts, and the networks they use
//	transport_options.go                 ... cost of options, round trips, loading of pages
//	transport_fairness.go                ... shares of a link beside TCP
//	transport_subflows.go                ... coupled congestion controls: many subflows, several links, a fast link
//	transport_requests.go                ... requests beside a path with a long round trip
//	transport_segments.go                ... the cost of an option in each segment
//	cflb.go cflb_*.go                    cflb: paths chosen by ports
//	trace.go trace_many.go trace_sack.go trace: dcol trace; many destinations; the thesis's damaged SACK
//	view.go view_page.go view_history.go view: dcol top, the page, upgrades, the time saved
//	analyse.go                           analyse: dcol analyse on captures
//	emulator.go                          wire: the emulated link
//
// # What they share
//
//	bench.go measurement.go abreast.go   the list, figures, measuring in turns and on several networks at a time
//	network.go chain.go routes.go line.go  networks: in general, with forwarders side by side, with relays
//	exchange.go exchange_server.go       a client and a server of short connections, transfers and round trips
//	load.go transfer.go ask.go syn.go    many connections, one transfer, requests to a waypoint, SYNs of joins
//	relay.go relays.go converted.go      relays, and a client of the Convert protocol
//	events.go process_times.go           a host's MPTCP events, processor time
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/programs"
)

// Options configures the benchmarks' output.
type Options struct {
	Out      string        // folder for the result and logs
	Programs programs.Pair // that hosts run
	Members  int           // of the benchmark collective
	// Repetitions is the number of times that the benchmarks convert, selection and transport measure each figure; 0: their
	// default.
	Repetitions int
	// HAProxy is the program that convert compares the engine with.
	HAProxy string
	// Places is a regular expression: the benchmark selection measures the places whose names match, and transport the parts.
	// Messages is how many messages or requests selection measures in each place.
	Places   string
	Messages int
	Stdout   io.Writer
	Stderr   io.Writer
	Log      *slog.Logger
}

// benchmark is a benchmark with its name.
type benchmark struct {
	name  string
	about string
	run   func(context.Context, Options) ([]Measurement, error)
}

func benchmarks() []benchmark {
	return []benchmark{
		{"aggregate", "goodput against the sum of the paths, and what MPTCP costs", aggregate},
		{"join", "time from a connection to its second subflow", join},
		{"joins", "joins a waypoint sends on in a second", acceptedJoins},
		{"connections", "2,000 new connections per second, 10,000 alive", connections},
		{"forwarding", "what a waypoint costs, by kind of detour, beside plain forwarding", forwarding},
		{"mappings", "100,000 mappings on one waypoint, and the way of 2017", mappings},
		{"collective", "one coordinator with very many members: joins, memory, an expulsion", collectives},
		{"convert", "dcol's engine for servers without MPTCP, beside forwarding, io.Copy and HAProxy", convert},
		{"selection", "how well detours are chosen, beside plain TCP and the best fixed choice", selection},
		{"transport", "what dcol changes about TCP: options, congestion controls, initial windows, fairness", transport},
		{"cflb", "paths chosen by ports: probes, misses, load, beside scamper", pathsByPorts},
		{"trace", "dcol trace: what it finds and how fast, beside other programs", traces},
		{"view", "what dcol top and the page cost, the page's first paint, an upgrade in mid-download, the history's time saved", view},
		{"analyse", "dcol analyse on generated captures, beside tshark", analyseTraffic},
		{"wire", "the emulated link against what was asked of it", emulator},
	}
}

// Names lists the benchmarks.
func Names() []string {
	var names []string
	for _, b := range benchmarks() {
		names = append(names, b.name)
	}
	return names
}

// Run runs the named benchmarks, or all. If one fails, the others still run.
func Run(ctx context.Context, names []string, o Options) error {
	for _, n := range names {
		if !slices.Contains(Names(), n) {
			return fmt.Errorf("there is no benchmark %q; there are %s", n, strings.Join(Names(), ", "))
		}
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return fmt.Errorf("output folder: %w", err)
	}
	var all []Measurement
	var errs []error
	for _, b := range benchmarks() {
		if len(names) > 0 && !slices.Contains(names, b.name) {
			continue
		}
		fmt.Fprintf(o.Stderr, "bench %s: %s\n", b.name, b.about)
		each := o
		each.Out = filepath.Join(o.Out, b.name)
		if err := os.MkdirAll(each.Out, 0o755); err != nil {
			return fmt.Errorf("output folder: %w", err)
		}
		found, err := b.run(ctx, each)
		for i := range found {
			found[i].Benchmark = b.name
		}
		all = append(all, found...)
		if err != nil {
			errs = append(errs, fmt.Errorf("bench %s: %w", b.name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(all) > 0 {
		errs = append(errs, record(filepath.Join(o.Out, resultFile), all), table(o.Stdout, all))
	}
	return errors.Join(errs...)
}
