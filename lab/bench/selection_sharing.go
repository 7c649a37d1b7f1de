package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

// sharingPlan sets the amount of work. A number of equal clients, each with its own agent, download at the same time. They
// share one direct path and some waypoints, and do not know who uses what.
//
//	client-1 --\            direct             /
//	   ...      west ------------------- east -- server
//	client-n --/    \                   /
//	                 waypoint-1 ... -m
type sharingPlan struct {
	clients     int
	access      int64   // bit/s of each client
	direct      int64   // bit/s
	waypoints   []int64 // bit/s of each
	subflows    int     // of a connection, the first one included
	duration    time.Duration
	window      time.Duration // over which goodput and fairness are averaged, to see how soon they settle
	repetitions int
}

const (
	sharingSeconds     = 60
	sharingRepetitions = 3
)

// sharing measures twelve clients and six waypoints of different capacity.
func sharing(ctx context.Context, o Options) ([]Measurement, error) {
	const mbit = 1_000_000
	plan := sharingPlan{
		clients: 12, access: 20 * mbit, direct: 6 * mbit, waypoints: []int64{1 * mbit, 2 * mbit, 3 * mbit, 4 * mbit, 5 * mbit, 6 * mbit},
		subflows: 3, duration: sharingSeconds * time.Second, window: 5 * time.Second, repetitions: sharingRepetitions,
	}
	if o.Repetitions > 0 {
		plan.repetitions = o.Repetitions
	}
	var chosen, fixed []sharedRun
	for range plan.repetitions {
		for _, one := range []struct {
			runs    *[]sharedRun
			choices [][]string
		}{{&chosen, nil}, {&fixed, plan.fixedChoices()}} {
			run, err := plan.soundRun(ctx, o, one.choices)
			if err != nil {
				return nil, err
			}
			*one.runs = append(*one.runs, run)
		}
	}
	return plan.figures(chosen, fixed), nil
}

// fixedChoices returns each client's waypoints in the fixed choice with which dcol is compared. It divides the clients'
// detours among the waypoints in proportion to capacity, by D'Hondt's method. Clients get small and large waypoints together.
func (p sharingPlan) fixedChoices() [][]string {
	users := make([]int, len(p.waypoints))
	for range p.clients * (p.subflows - 1) {
		best := 0
		for j, rate := range p.waypoints {
			if rate*int64(users[best]+1) > p.waypoints[best]*int64(users[j]+1) {
				best = j
			}
		}
		users[best]++
	}
	choices, next := make([][]string, p.clients), 0
	for j, n := range users {
		for range n {
			client := next % p.clients
			choices[client] = append(choices[client], waypointName(j))
			next++
		}
	}
	return choices
}

// sharedRun is the result of a run.
type sharedRun struct {
	received  [][]float64 // bytes of each client, at every second since the start
	forwarded []float64   // bytes that each waypoint sent to clients
	users     [][]float64 // at every second since the start: each waypoint's users, the detours that carried data in this second
	links     []report.LinkUse
}

// soundRun repeats a run if the machine was too busy for accurate links, as often as an experiment does. The last
// one counts in any case; the figures say how late its links were.
func (p sharingPlan) soundRun(ctx context.Context, o Options, choices [][]string) (r sharedRun, err error) {
	for range runner.MaxAttempts {
		if r, err = p.run(ctx, o, choices); err != nil {
			return r, err
		}
		_, _, why := runner.Judge(scenario.Workload{Kind: scenario.Download}, report.Run{Links: r.links})
		if why == "" {
			return r, nil
		}
		fmt.Fprintf(o.Stderr, "%s: %s\n", sharingPlace, why)
	}
	return r, nil
}

const (
	sharingEvery = time.Second
	westRouter   = "west"
	eastRouter   = "east"
)

func clientName(i int) string   { return fmt.Sprintf("client-%d", i+1) }
func waypointName(j int) string { return fmt.Sprintf("waypoint-%d", j+1) }

// names returns the plan's hosts.
func (p sharingPlan) names() (clients, waypoints []string) {
	for i := range p.clients {
		clients = append(clients, clientName(i))
	}
	for j := range p.waypoints {
		waypoints = append(waypoints, waypointName(j))
	}
	return clients, waypoints
}

// spec returns the network.
func (p sharingPlan) spec() testbed.Spec {
	const detourCost = 100
	s := testbed.Spec{Seed: 1, Backend: testbed.BackendEmulator, Hosts: []testbed.HostSpec{
		{Name: serverHost}, {Name: westRouter, Forward: true}, {Name: eastRouter, Forward: true},
	}}
	link := func(name, a, b string, rate int64, delay time.Duration, cost int) {
		l := testbed.LinkParams{Rate: rate, Delay: delay}
		s.Links = append(s.Links, testbed.LinkSpec{Name: name, A: a, B: b, AtoB: l, BtoA: l, Cost: cost})
	}
	const fast = 100_000_000
	link("site", eastRouter, serverHost, fast, time.Millisecond, 1)
	link("direct", westRouter, eastRouter, p.direct, 15*time.Millisecond, 1)
	clients, waypoints := p.names()
	for _, name := range clients {
		s.Hosts = append(s.Hosts, testbed.HostSpec{Name: name})
		link(toClient(name), name, westRouter, p.access, 2*time.Millisecond, 1)
	}
	for j, name := range waypoints {
		s.Hosts = append(s.Hosts, testbed.HostSpec{Name: name})
		link(toClient(name), westRouter, name, fast, 2*time.Millisecond, detourCost)
		link(toServer(name), name, eastRouter, p.waypoints[j], 10*time.Millisecond, detourCost)
	}
	return s
}

// waypointSettings returns what the operator of a waypoint configures: its capacity, without which it would not know when it
// is loaded.
func (p sharingPlan) waypointSettings(j int) crew.Settings {
	return crew.Settings{"bandwidth": units.Rate(p.waypoints[j]).String()}
}

// run builds the network and lets all clients download at once. Each uses its waypoints in choices. If choices is nil, dcol
// chooses among all waypoints.
func (p sharingPlan) run(ctx context.Context, o Options, choices [][]string) (r sharedRun, err error) {
	clients, waypoints := p.names()
	s, err := openNetwork(ctx, o, p.spec(), append(clients, waypoints...))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	kinds := []config.Kind{config.Mapped}
	for j, w := range waypoints {
		var settings crew.Settings // with a fixed choice, none: a waypoint without a known capacity refuses nobody
		if choices == nil {
			settings = p.waypointSettings(j)
		}
		if _, err := s.startWaypointWith(ctx, settings, kinds, w, true); err != nil {
			return r, err
		}
	}
	ends, err := p.startClients(ctx, s, kinds, choices)
	if err != nil {
		return r, err
	}
	at := netip.AddrPortFrom(s.Host(serverHost).Addr4(), exchangePort)
	if _, err := s.startServer(ctx, &ExchangeServer{At: at, Multipath: true}); err != nil {
		return r, err
	}
	if err := s.ResetStats(); err != nil {
		return r, err
	}
	for _, end := range ends {
		if err := end.call("Begin", Transfer{Target: Target{To: at, Multipath: true}}, nil); err != nil {
			return r, err
		}
	}
	if err := p.watch(ctx, s, ends, &r); err != nil {
		return r, err
	}
	err = p.readLinks(s, &r)
	for _, end := range ends {
		err = errors.Join(err, end.call("End", struct{}{}, nil))
	}
	return r, err
}

// startClients starts an agent and a program on each client's host.
func (p sharingPlan) startClients(ctx context.Context, s *network, kinds []config.Kind, choices [][]string) (ends []*exchangeEnd, err error) {
	clients, waypoints := p.names()
	settings := crew.Settings{"subflows": p.subflows}
	if choices != nil {
		settings["selection"] = config.SelectOldest
	}
	for i, name := range clients {
		via := waypoints
		if choices != nil {
			via = choices[i]
		}
		if _, err := s.startClientWith(ctx, settings, kinds, name, via...); err != nil {
			return nil, err
		}
		end, err := s.startEnd(ctx, name, ExchangeClientPart, &ExchangeClient{})
		if err != nil {
			return nil, err
		}
		ends = append(ends, end)
	}
	return ends, nil
}

// watch records, every second, what each client has received, and how many users each waypoint has.
func (p sharingPlan) watch(ctx context.Context, s *network, ends []*exchangeEnd, r *sharedRun) error {
	detours, err := p.newDetourCounter(s)
	if err != nil {
		return err
	}
	defer detours.close()
	r.received = make([][]float64, len(ends))
	began := time.Now()
	for look := time.Duration(0); look <= p.duration; look += sharingEvery {
		if err := crew.Pause(ctx, time.Until(began.Add(look))); err != nil {
			return err
		}
		for i, end := range ends {
			var now Received
			if err := end.call("Received", struct{}{}, &now); err != nil {
				return err
			}
			r.received[i] = append(r.received[i], float64(now.Bytes))
		}
		users, err := detours.look()
		if err != nil {
			return err
		}
		r.users = append(r.users, users)
	}
	return nil
}

// readLinks reads what the links carried.
func (p sharingPlan) readLinks(s *network, r *sharedRun) error {
	for _, link := range p.spec().Links {
		ab, ba, err := s.LinkStats(link.Name)
		if err != nil {
			return err
		}
		for _, way := range []testbed.LinkStats{ab, ba} {
			r.links = append(r.links, report.LinkUse{
				Link: link.Name, Packets: way.Packets, LatenessP99MS: stats.Milliseconds(way.Late.P99),
				EmulationDrops: way.RingDrops + way.WriteErrors,
			})
		}
	}
	_, waypoints := p.names()
	for _, name := range waypoints {
		_, toWaypoint, err := s.LinkStats(toServer(name))
		if err != nil {
			return err
		}
		r.forwarded = append(r.forwarded, float64(toWaypoint.Bytes))
	}
	return nil
}

// payload is the part of a full packet that MPTCP leaves to programs.
const payload = 1424.0 / 1500

// optimum returns the clients' max-min fair goodputs in Mbit/s. It assumes that every client can spread its traffic over
// the direct path and all waypoints.
func (p sharingPlan) optimum() []float64 {
	mbit := func(rate int64) float64 { return float64(rate) * payload / 1e6 }
	capacities, all := []float64{mbit(p.direct)}, []int{0}
	for j, rate := range p.waypoints {
		capacities, all = append(capacities, mbit(rate)), append(all, j+1)
	}
	limits, allowed := make([]float64, p.clients), make([][]int, p.clients)
	for i := range p.clients {
		limits[i], allowed[i] = mbit(p.access), all
	}
	return stats.MaxMin(limits, capacities, allowed)
}

// Targets for clients that share waypoints.
const (
	leastTotal    = 0.9 // of the optimum
	leastFairness = 0.9
	mostSettling  = 20 // seconds
	mostCrowding  = 1.5
)

// sharedResults are the results of several runs, one element for each.
type sharedResults struct {
	totals   []float64 // Mbit/s of all clients
	fairness []float64 // Jain's index
	settling []float64 // seconds
	crowding []float64 // a waypoint's share of all users against its share of the capacity, the largest of all waypoints
	byBytes  []float64 // the same for its share of all bytes
	lateness []float64 // ms, of the latest link
}

// results returns the results of the runs. In the first seconds, all clients look for waypoints. These seconds count only for
// the time to settle.
func (p sharingPlan) results(runs []sharedRun) (all sharedResults) {
	for _, r := range runs {
		rates := r.rates(p.settledFrom(), int(p.duration/sharingEvery))
		all.totals, all.fairness = append(all.totals, sum(rates)), append(all.fairness, stats.Jain(rates))
		all.settling = append(all.settling, r.settles(int(p.window/sharingEvery), leastTotal*sum(p.optimum())))
		all.crowding = append(all.crowding, p.crowding(r))
		all.byBytes = append(all.byBytes, slices.Max(p.sharesByCapacity(r.forwarded)))
		all.lateness = append(all.lateness, report.Run{Links: r.links}.Latest().LatenessP99MS)
	}
	return all
}

// settledFrom returns the second from which on goodput and fairness count.
func (p sharingPlan) settledFrom() int { return min(mostSettling, int(p.duration/sharingEvery)/2) }

// figures returns the figures of the runs in which dcol chose, beside those with the fixed choice.
func (p sharingPlan) figures(chosen, fixed []sharedRun) []Measurement {
	ours, theirs := p.results(chosen), p.results(fixed)
	name := func(what string) string { return fmt.Sprintf("selection %s: %s", sharingPlace, what) }
	total := of(name("total goodput against the max-min optimum"), "Mbit/s", ours.totals).against(sum(p.optimum()))
	total.Note = fmt.Sprintf("from %d s on; the fixed choice had %.4g Mbit/s; links were at most %.1f ms late (99th percentile)",
		p.settledFrom(), stats.Summarize(theirs.totals).Median, stats.Quantile(slices.Concat(ours.lateness, theirs.lateness), 1))
	jain := of(name("Jain's index of the clients' goodput against the fixed choice"), "", ours.fairness).
		against(stats.Summarize(theirs.fairness).Median)
	settled := of(name("time until goodput and Jain's index stay at 90 %"), "s", ours.settling)
	settled.Note = fmt.Sprintf("the fixed choice: %.4g s", stats.Summarize(theirs.settling).Median)
	crowding := of(name("largest share of a waypoint in all detours against its share by capacity"), "×", ours.crowding)
	crowding.Value = slices.Max(ours.crowding) // no waypoint may be crowded, in any run
	crowding.Note = fmt.Sprintf("the worst run; %.4g in the most crowded five seconds of all runs (the fixed choice: %.4g); waypoints have %s detours with data on average, from %d s on; the fixed choice: %.4g; by bytes, which cannot exceed capacity, the largest share is %.4g",
		p.mostCrowded(chosen), p.mostCrowded(fixed), p.describeUsers(chosen), p.settledFrom(), slices.Max(theirs.crowding), slices.Max(ours.byBytes))
	return []Measurement{
		total.target(">= 0.9", *total.Ratio >= leastTotal),
		jain.target(">= 0.9", jain.Value >= leastFairness),
		settled.target("<= 20 s", settled.Value <= mostSettling),
		crowding.target("<= 1.5", crowding.Value <= mostCrowding),
	}
}

// rates returns the goodput of each client from one second to another, in Mbit/s.
func (r sharedRun) rates(from, to int) (rates []float64) {
	for _, bytes := range r.received {
		rates = append(rates, (bytes[to]-bytes[from])*8/1e6/float64(to-from))
	}
	return rates
}

// settles returns the number of seconds after which, in every window, the clients' goodput is fair and its sum is at least
// least.
func (r sharedRun) settles(window int, least float64) float64 {
	if len(r.received) == 0 {
		return 0
	}
	last := len(r.received[0]) - 1
	settled := last
	for from := last - window; from >= 0; from-- {
		rates := r.rates(from, from+window)
		if sum(rates) < least || !(stats.Jain(rates) >= leastFairness) {
			break
		}
		settled = from
	}
	return float64(settled)
}

// crowding compares each waypoint's share of all users with its share of the capacity. It returns the largest ratio, on
// average over the time from which results count. Waypoints with at most one user do not count: a small waypoint's share may
// be less than one user, and nobody could use it then.
func (p sharingPlan) crowding(r sharedRun) float64 { return p.crowdingIn(r.users[p.settledFrom()+1:]) }

// mostCrowded returns the largest crowding of a window in any of the runs.
func (p sharingPlan) mostCrowded(runs []sharedRun) (most float64) {
	seconds := int(p.window / sharingEvery)
	for _, r := range runs {
		for from := p.settledFrom() + 1; from+seconds <= len(r.users); from++ {
			most = max(most, p.crowdingIn(r.users[from:from+seconds]))
		}
	}
	return most
}

// crowdingIn is crowding in these seconds, each with the users of all waypoints.
func (p sharingPlan) crowdingIn(seconds [][]float64) (most float64) {
	users := p.meanUsers(seconds)
	for j, ratio := range p.sharesByCapacity(users) {
		if users[j] > 1 {
			most = max(most, ratio)
		}
	}
	return most
}

// meanUsers returns the average number of each waypoint's users in these seconds.
func (p sharingPlan) meanUsers(seconds [][]float64) []float64 {
	means := make([]float64, len(p.waypoints))
	for j := range means {
		var users []float64
		for _, now := range seconds {
			users = append(users, now[j])
		}
		means[j] = stats.Mean(users)
	}
	return means
}

// describeUsers returns the average number of each waypoint's users in all runs, as text.
func (p sharingPlan) describeUsers(runs []sharedRun) string {
	var all []string
	for j := range p.waypoints {
		var users []float64
		for _, r := range runs {
			users = append(users, p.meanUsers(r.users[p.settledFrom()+1:])[j])
		}
		all = append(all, fmt.Sprintf("%.1f", stats.Mean(users)))
	}
	return strings.Join(all, ", ")
}

// sharesByCapacity returns the ratio of each waypoint's share of something to its share of the capacity.
func (p sharingPlan) sharesByCapacity(parts []float64) []float64 {
	capacity := 0.0
	for _, rate := range p.waypoints {
		capacity += float64(rate)
	}
	ratios, total := make([]float64, len(parts)), sum(parts)
	for j, part := range parts {
		ratios[j] = part / total / (float64(p.waypoints[j]) / capacity)
	}
	return ratios
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}
