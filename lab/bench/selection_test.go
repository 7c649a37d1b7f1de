package bench

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/racetest"
	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/jsonfile"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/scenarios"
	"github.com/detour-collective/dcol/lab/traffic"
)

// Few clients share few waypoints for a moment: everybody receives something, also through waypoints.
func smallSharing(t *testing.T, o Options) {
	const mbit = 1_000_000
	plan := sharingPlan{
		clients: 2, access: 10 * mbit, direct: 2 * mbit, waypoints: []int64{2 * mbit, 4 * mbit}, subflows: 3,
		duration: 2 * time.Second, window: time.Second,
	}
	run, err := plan.run(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(run.forwarded) != 2 || !(sum(run.forwarded) > 0) {
		t.Errorf("the waypoints forwarded %v bytes", run.forwarded)
	}
	if used := slices.ContainsFunc(run.users, func(users []float64) bool { return sum(users) > 0 }); len(run.users) != 3 || !used {
		t.Errorf("the waypoints had %v users", run.users)
	}
	for i, received := range run.received {
		if len(received) != 3 || !slices.IsSorted(received) || !(received[2] > 0) {
			t.Errorf("client %d received %v", i, received)
		}
	}
	// A busy machine reads the counters late, so that a window has more than there is. Bytes that count twice give twice as much.
	if figures := plan.figures([]sharedRun{run}, []sharedRun{run}); len(figures) != 4 || !(figures[0].Value > 0) || !(*figures[0].Ratio < 1.5) {
		t.Errorf("%+v", figures)
	}
}

// Each waypoint knows its own capacity, so that it can say when it is loaded.
func TestSharedWaypointsKnowTheirCapacity(t *testing.T) {
	plan := sharingPlan{waypoints: []int64{1_000_000, 2_500_000}}
	for j, capacity := range plan.waypoints {
		file, err := crew.Agent{Waypoint: plan.waypointSettings(j)}.TOML("waypoint")
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.Parse("waypoint.toml", file)
		if err != nil {
			t.Fatal(err)
		}
		if int64(c.Waypoint.Bandwidth) != capacity {
			t.Errorf("waypoint %d: its bandwidth is %v, want %d bit/s", j, c.Waypoint.Bandwidth, capacity)
		}
	}
}

// Every connection lives while the agent is measured, and the active ones exchange something.
func smallAlive(t *testing.T, o Options) {
	plan := alivePlan{
		load: Load{Ports: 2, Rate: 40, Duration: time.Second, Hold: 4 * time.Second, Active: 5, Pulse: 20 * time.Millisecond},
		look: 500 * time.Millisecond,
	}
	r, err := plan.run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.seen.joined != 40 || r.seen.alive != 40 || r.driven.Opened != 40 || r.driven.Failed != 0 {
		t.Errorf("%+v, the program counts %+v", r.seen, r.driven)
	}
	if r.agent.Highest < 1<<20 || len(r.agent.Resident) < 2 {
		t.Errorf("the agent's memory: %+v", r.agent)
	}
	for _, m := range r.figures() {
		if m.Met == nil || !*m.Met {
			t.Errorf("with 40 connections: %+v", m)
		}
	}
}

// An agent that has less to do than planned meets no target.
func TestAliveFigures(t *testing.T) {
	whole := aliveRun{planned: 10, seen: eventCounts{joined: 10, mostAlive: 10, alive: 10}}
	for what, change := range map[string]func(*aliveRun){
		"a connection without a subflow": func(r *aliveRun) { r.seen.joined-- },
		"a connection that died":         func(r *aliveRun) { r.seen.alive-- },
		"one that could not be opened":   func(r *aliveRun) { r.driven.Failed++ },
		"the agent lost events":          func(r *aliveRun) { r.lost++ },
		"the listener lost events":       func(r *aliveRun) { r.seen.lost++ },
	} {
		less := whole
		change(&less)
		for i, m := range less.figures() {
			if *m.Met || !*whole.figures()[i].Met {
				t.Errorf("%s: %+v, and without that %+v", what, m, whole.figures()[i])
			}
		}
	}
}

// Every part of the suite has plain TCP or is about gaps, has what dcol chooses, and gives figures with a target.
func TestSimulatedSelectionSuite(t *testing.T) {
	racetest.Skip(t)
	_, suite, err := scenarios.Find("selection")
	if err != nil {
		t.Fatal(err)
	}
	places := inPlaces(suite.Parts, regexp.MustCompile(""), Options{Messages: DefaultMessages})
	names := map[string]bool{}
	for _, part := range places {
		p := testPlace(t, part)
		for _, procedure := range part.Procedures {
			for repetition := range 3 {
				p.runs.Runs = append(p.runs.Runs, testRunOf(t, p, procedure, repetition))
			}
		}
		found, err := p.figures()
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
			continue
		}
		targets := 0
		for _, m := range found {
			if !strings.HasPrefix(m.Name, "selection "+p.name+": ") || math.IsNaN(m.Value) || names[m.Name] {
				t.Errorf("%+v; there was one of this name: %t", m, names[m.Name])
			}
			names[m.Name] = true
			if m.Met != nil {
				targets++
				if !*m.Met {
					t.Errorf("%+v: all procedures are alike", m)
				}
			}
		}
		if targets == 0 {
			t.Errorf("%s: no figure has a target: %+v", p.name, found)
		}
	}
	if len(places) < 60 {
		t.Errorf("%d places", len(places))
	}
}

func testPlace(t *testing.T, part scenario.Part) place {
	t.Helper()
	result := &report.Result{}
	for _, name := range part.Procedures {
		result.Procedures = append(result.Procedures, report.Procedure{Name: name})
	}
	for _, e := range part.Of.Events {
		result.Marks = append(result.Marks, report.Mark{Seconds: e.At.Seconds()})
	}
	return newPlace(part, result, t.TempDir())
}

// testRunOf is a run that is the same for every procedure.
func testRunOf(t *testing.T, p place, procedure string, repetition int) report.Run {
	t.Helper()
	run := report.Run{
		Variant: p.variant, Procedure: procedure, Congestion: p.runs.Congestion, Repetition: repetition + 1,
		GoodputMbps: 10, LongestStallMS: 100, Log: procedure,
	}
	if p.workload.HasLatency() {
		run.Latency = report.NewLatency([]time.Duration{20 * time.Millisecond})
	}
	for range int(p.workload.Duration.Seconds()) {
		run.ReceivedMbps = append(run.ReceivedMbps, 10)
	}
	if p.workload.MadeByDCol() {
		writeLatencies(t, p, procedure, slices.Repeat([]time.Duration{20 * time.Millisecond}, p.workload.Turns()))
	}
	return run
}

// writeLatencies writes what the traffic's program would.
func writeLatencies(t *testing.T, p place, log string, latencies []time.Duration) {
	t.Helper()
	said := traffic.Report{Size: 1, Interval: p.workload.Interval.Std()}
	for i, l := range latencies {
		said.Done = append(said.Done, time.Duration(i)*said.Interval+l)
	}
	if err := os.MkdirAll(filepath.Join(p.folder, log), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := jsonfile.Write(filepath.Join(p.folder, log, "traffic.json"), said); err != nil {
		t.Fatal(err)
	}
}

// Places get as many repetitions as their number of messages takes, and others as many as are asked for.
func TestInPlaces(t *testing.T) {
	_, suite, err := scenarios.Find("selection")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, part := range inPlaces(suite.Parts, regexp.MustCompile("beyond/(stream|requests) (base|100KB)$|direct-dies"), Options{Repetitions: 2, Messages: 2000}) {
		found[placeName(part.Scenario, part.Variants[0])] = part.Repetitions
	}
	want := map[string]int{
		"beyond/stream base": 4, "beyond/requests base": 34, "beyond/requests 100KB": 55, "beyond/direct-dies base": 2,
		"selection/messages-direct-dies base": 2, "selection/messages-direct-dies download": 2,
		"selection/messages-direct-dies far": 2, "selection/messages-direct-dies far-download": 2,
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("repetitions (-want +got):\n%s", diff)
	}
}

// A run in which dcol failed has no latencies, so the other figures are as good as without it. A figure of its own counts such
// runs. It does not count runs that the lab repeated.
func TestFailedRunsAreAFigure(t *testing.T) {
	there := func(name string, runs ...report.Run) place {
		return place{name: name, variant: "base", runs: report.Measured{Result: &report.Result{Runs: runs}}}
	}
	good := report.Run{Procedure: "dcol", Repetition: 1, Log: "1"}
	hung := report.Run{Procedure: "dcol", Repetition: 2, Log: "2", Discarded: "it took longer than 30s", Cause: report.CauseProduct}
	late := report.Run{Procedure: "dcol", Repetition: 3, Log: "3", Discarded: "a link was late", Cause: report.CauseLateLink}
	found, err := figuresOf([]place{there("near base", good, hung, late), there("near base", good, hung), there("far base", good)})
	if !errors.Is(err, errNoRuns) {
		t.Errorf("places without plain TCP have the error %v", err)
	}
	m := found[0]
	if m.Value != 1 || *m.Met || m.Repetitions != 2 || m.Note != "near base: dcol, repetition 2" {
		t.Errorf("%+v", m)
	}
	if m := failures([]place{there("near base", good, late)}); m.Value != 0 || !*m.Met || m.Note != "" {
		t.Errorf("without failures: %+v", m)
	}
}

// The 99th percentile is that of all messages: one in fifty is late in one run of two.
func TestMessageFigures(t *testing.T) {
	p := place{name: "there", variant: "base", folder: t.TempDir(), workload: scenario.Workload{Kind: scenario.Stream, Interval: units.Duration(20 * time.Millisecond)}}
	p.runs.Result = &report.Result{Procedures: []report.Procedure{{Name: "tcp"}, {Name: "tcp-detour"}, {Name: "dcol"}}}
	late := func(latency time.Duration, often int) []time.Duration {
		all := slices.Repeat([]time.Duration{10 * time.Millisecond}, 1000)
		for i := range often {
			all[i] = latency
		}
		return all
	}
	for log, latencies := range map[string][]time.Duration{
		"tcp-1": late(0, 0), "tcp-2": late(20*time.Millisecond, 40), "dcol-1": late(0, 0), "dcol-2": late(44*time.Millisecond, 40),
		"tcp-detour-1": late(11*time.Millisecond, 500), "tcp-detour-2": late(11*time.Millisecond, 500),
	} {
		writeLatencies(t, p, log, latencies)
		p.runs.Runs = append(p.runs.Runs, report.Run{Variant: "base", Procedure: log[:strings.LastIndex(log, "-")], Log: log})
	}
	found, err := p.messageFigures()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ value, baseline float64 }{{44, 20}, {44, 11}} {
		m := found[i]
		if m.Value != want.value || *m.Baseline != want.baseline || *m.Met || m.Repetitions != 2 {
			t.Errorf("%+v, want %v", m, want)
		}
		if !(m.Interval.Low < *m.Ratio) || m.Interval.High < *m.Ratio {
			t.Errorf("the ratio %v is not in %+v", *m.Ratio, m.Interval)
		}
	}
}

// The goodput is reached in the second from which it stays, not where it is high for a moment. That second itself has the
// goodput, not only the mean of the three seconds that begin there.
func TestReaches(t *testing.T) {
	for _, test := range []struct {
		what  string
		rates []float64
		from  int
		level float64
		want  int
	}{
		{"at once", []float64{9, 9, 9, 9}, 0, 9, 0},
		{"data that waited arrives in one second", []float64{1, 1, 30, 1, 1, 1, 9, 9, 9, 9}, 0, 9, 6},
		{"a second has less", []float64{1, 9, 8, 11, 9, 9}, 0, 9, 1},
		{"it falls within ten seconds", []float64{9, 9, 9, 9, 9, 9, 9, 1, 1, 1, 9, 9, 9}, 0, 9, 10},
		{"it falls after ten seconds", []float64{9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 1, 1, 1}, 0, 9, 0},
		{"a mean that a later second reaches", []float64{1, 1, 1, 25, 9, 9, 9}, 0, 9, 3},
		{"only the last seconds count", []float64{9, 9, 9, 1, 9, 9, 9}, 3, 9, 4},
		{"too late for a mean", []float64{1, 1, 1, 9, 9}, 0, 9, 5},
		{"never", []float64{1, 1, 1, 1}, 0, 9, 4},
		{"three seconds have little less", []float64{10, 10, 10, 8, 8, 8, 10, 10, 10, 10}, 0, 9, 0},
		{"three seconds have much less", []float64{20, 20, 20, 7, 7, 7, 10, 10, 10, 10}, 0, 9, 6},
		{"more later makes up for nothing", []float64{9, 1, 1, 20, 20, 20, 20}, 0, 9, 3},
	} {
		if got := reaches(test.rates, test.from, test.level); got != test.want {
			t.Errorf("%s: second %d, want %d", test.what, got, test.want)
		}
	}
}

// How three clients share two waypoints, of which one is used too much.
func TestSharingFigures(t *testing.T) {
	plan := sharingPlan{
		clients: 3, access: 10e6, direct: 3e6, waypoints: []int64{3e6, 6e6}, duration: 6 * time.Second, window: 2 * time.Second,
	}
	if diff := cmp.Diff([]float64{4 * payload, 4 * payload, 4 * payload}, plan.optimum(), cmpopts.EquateApprox(1e-6, 0)); diff != "" {
		t.Errorf("the optimum (-want +got):\n%s", diff)
	}
	// For two seconds the first client has nothing.
	bytes := func(mbps ...float64) (received []float64) {
		received = []float64{0}
		for _, r := range mbps {
			received = append(received, received[len(received)-1]+r*1e6/8)
		}
		return received
	}
	// As many detours use the small waypoint as the large one, although no more bytes fit through it.
	run := sharedRun{
		received:  [][]float64{bytes(0, 0, 4, 4, 4, 4), bytes(4, 4, 4, 4, 4, 4), bytes(4, 4, 4, 4, 4, 4)},
		forwarded: []float64{30, 60}, users: slices.Repeat([][]float64{{3, 3}}, 7),
	}
	fair := sharedRun{
		received:  slices.Repeat([][]float64{bytes(4, 4, 4, 4, 4, 4)}, 3),
		forwarded: []float64{30, 60}, users: slices.Repeat([][]float64{{2, 4}}, 7),
	}
	found := plan.figures([]sharedRun{run, run}, []sharedRun{fair})
	for i, want := range []struct {
		value    float64
		baseline float64 // 0: none
		met      bool
	}{{12, 12 * payload, true}, {1, 1, true}, {2, 0, true}, {1.5, 0, true}} {
		m := found[i]
		if math.Abs(m.Value-want.value) > 1e-9 || *m.Met != want.met || m.Baseline != nil && math.Abs(*m.Baseline-want.baseline) > 1e-9 {
			t.Errorf("%+v, want %+v", m, want)
		}
	}
}

// Users of a waypoint are counted from the time on at which the clients should have settled. A waypoint with one user is never
// crowded.
func TestCrowding(t *testing.T) {
	// The waypoint of 1 Mbit/s has a ninth of the capacity.
	plan := sharingPlan{waypoints: []int64{1e6, 8e6}, duration: 40 * time.Second}
	during := func(first, then []float64) sharedRun {
		return sharedRun{users: slices.Concat(slices.Repeat([][]float64{first}, 21), slices.Repeat([][]float64{then}, 20))}
	}
	for _, test := range []struct {
		what string
		run  sharedRun
		want float64
	}{
		{"by capacity", during([]float64{2, 16}, []float64{2, 16}), 1},
		{"crowded until they settle", during([]float64{9, 9}, []float64{2, 16}), 1},
		{"crowded all the time", during([]float64{6, 12}, []float64{6, 12}), 3},
		{"one of three users", during([]float64{1, 2}, []float64{1, 2}), 2.0 / 3 / (8.0 / 9)},
		{"nobody", during([]float64{0, 0}, []float64{0, 0}), 0},
		{"crowded for a quarter of the time", sharedRun{users: slices.Concat(
			slices.Repeat([][]float64{{2, 16}}, 36), slices.Repeat([][]float64{{10, 8}}, 5))}, 2},
	} {
		if got := plan.crowding(test.run); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	plan.window = 5 * time.Second
	stampede := sharedRun{users: slices.Concat(slices.Repeat([][]float64{{2, 16}}, 36), slices.Repeat([][]float64{{10, 8}}, 5))}
	if got := plan.mostCrowded([]sharedRun{during([]float64{2, 16}, []float64{2, 16}), stampede}); math.Abs(got-5) > 1e-9 {
		t.Errorf("in the most crowded seconds: %v, want 5", got)
	}
}

// A detour uses its waypoint in a second in which it carries data, and not if it is a backup or only tried.
func TestDetoursWithDataAreCounted(t *testing.T) {
	near, far := netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("10.0.2.1")
	c := detourCounter{waypoints: map[netip.Addr]int{near: 0, far: 1}}
	socket := func(cookie uint32, peer netip.Addr, acked uint64) *netlink.InetDiagTCPInfoResp {
		id := netlink.SocketID{Destination: peer.AsSlice(), Cookie: [2]uint32{cookie, 0}}
		return &netlink.InetDiagTCPInfoResp{InetDiagMsg: &netlink.Socket{ID: id}, TCPInfo: &netlink.TCPInfo{Bytes_acked: acked}}
	}
	direct := netip.MustParseAddr("10.0.9.1")
	for _, look := range []struct {
		near, second, far, direct uint64 // bytes so far
		want                      []float64
	}{
		{0, 0, 0, 0, []float64{0, 0}},
		{100_000, 90_000, 20_000, 50_000, []float64{2, 1}},
		{200_000, 92_000, 20_000, 90_000, []float64{1, 0}},
		{200_000, 92_000, 40_000, 90_000, []float64{0, 1}},
	} {
		got := c.count([]*netlink.InetDiagTCPInfoResp{
			socket(1, near, look.near), socket(2, near, look.second), socket(3, far, look.far), socket(4, direct, look.direct),
		})
		if diff := cmp.Diff(look.want, got); diff != "" {
			t.Errorf("users of each waypoint (-want +got):\n%s", diff)
		}
	}
}

// Detours are divided among the waypoints by capacity, and no client has a waypoint twice.
func TestFixedChoices(t *testing.T) {
	plan := sharingPlan{clients: 12, waypoints: []int64{1e6, 2e6, 3e6, 4e6, 5e6, 6e6}, subflows: 3}
	users := map[string]int{}
	for i, via := range plan.fixedChoices() {
		if len(via) != 2 || via[0] == via[1] {
			t.Errorf("client %d has the waypoints %q, want two", i+1, via)
		}
		for _, w := range via {
			users[w]++
		}
	}
	want := map[string]int{"waypoint-1": 1, "waypoint-2": 2, "waypoint-3": 3, "waypoint-4": 5, "waypoint-5": 6, "waypoint-6": 7}
	if diff := cmp.Diff(want, users); diff != "" {
		t.Errorf("clients of each waypoint (-want +got):\n%s", diff)
	}
}

// A history is what an earlier agent saved: the procedure with a history restarts the agent.
func TestHistoryIsReadFromDisk(t *testing.T) {
	_, suite, err := scenarios.Find("selection")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, part := range suite.Parts {
		if p, ok := part.Of.Procedure(again); ok {
			found++
			if p.WarmUp == 0 || !p.Restart {
				t.Errorf("%s: %+v", part.Scenario, p)
			}
		}
	}
	if found == 0 {
		t.Error("no scenario has a procedure with a history")
	}
}

// Where dcol must find something out at the beginning, the beginning counts.
func TestSelectionSkipsNothing(t *testing.T) {
	for _, name := range scenarios.Names() {
		if !strings.HasPrefix(name, "selection/") {
			continue
		}
		s, err := scenarios.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, variant := range s.VariantNames() {
			v, _ := s.Variant(variant)
			if skip := s.WorkloadIn(v).Skip; skip != 0 {
				t.Errorf("%s %s skips %v", name, variant, skip)
			}
		}
	}
}

// Goodput and latencies by default are measured in places of several kinds. The targets assume that the kind of detour that
// agents use first by default adds nothing to a packet.
func TestDefaultDetoursAreMeasured(t *testing.T) {
	_, suite, err := scenarios.Find("selection")
	if err != nil {
		t.Fatal(err)
	}
	measured := map[string]string{}
	for _, part := range inPlaces(suite.Parts, regexp.MustCompile(""), Options{Messages: DefaultMessages}) {
		p := testPlace(t, part)
		if !p.has(byDefault) {
			continue
		}
		if procedure, _ := part.Of.Procedure(byDefault); procedure.Detour != scenario.DefaultDetour || procedure.Subflows != 0 || len(procedure.DCol) != 0 {
			t.Errorf("%s is configured: %+v", p.name, procedure)
		}
		p.runs.Runs = append(p.runs.Runs, testRunOf(t, p, plainTCP, 0), testRunOf(t, p, byDefault, 0))
		found, err := p.figures()
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %+v", p.name, err, found)
		}
		measured[p.name] = strings.TrimPrefix(found[0].Name, "selection "+p.name+": ") + " " + found[0].Target
	}
	want := map[string]string{
		"selection/six-waypoints base":          "goodput against plain TCP, by default >= 0.97",
		"selection/six-waypoints direct-best":   "goodput against plain TCP, by default >= 0.97",
		"selection/lossy-detour base":           "goodput against plain TCP, by default >= 0.97",
		"beyond/sweep rate-2.5mbit_delay-120ms": "goodput against plain TCP, by default >= 0.97",
		"beyond/stream slow-detour":             "p99 against plain TCP, by default <= 1.1",
	}
	if diff := cmp.Diff(want, measured); diff != "" {
		t.Errorf("measured by default (-want +got):\n%s", diff)
	}
	c, err := config.LoadOrDefault(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	offered := func(k config.Kind) bool { return slices.Contains(c.Waypoint.Offers, k) }
	if first := c.Client.Kinds[slices.IndexFunc(c.Client.Kinds, offered)]; first != config.InBand {
		t.Errorf("by default, detours are %s; count their headers", first)
	}
}

// Files are measured in networks where a detour is poor, in each size.
func TestFilesBesidePoorDetours(t *testing.T) {
	_, suite, err := scenarios.Find("selection")
	if err != nil {
		t.Fatal(err)
	}
	figures := map[string]string{}
	for _, part := range inPlaces(suite.Parts, regexp.MustCompile("^selection/files "), Options{Messages: DefaultMessages}) {
		p := testPlace(t, part)
		p.runs.Runs = append(p.runs.Runs, testRunOf(t, p, plainTCP, 0), testRunOf(t, p, product, 0))
		late := &p.runs.Runs[1]
		late.Latency.P50MS *= 1.04
		found, err := p.figures()
		if err != nil || len(found) != 1 || *found[0].Met {
			t.Fatalf("%s: %v, %+v, want one that 1.04 does not meet", p.name, err, found)
		}
		figures[p.variant] = fmt.Sprint(p.workload.Size)
	}
	want := map[string]string{}
	for _, network := range []string{"far", "lossy", "shared-line"} {
		for _, size := range []string{"100KB", "1MB", "10MB"} {
			want[network+"-"+size] = size
		}
	}
	if diff := cmp.Diff(want, figures); diff != "" {
		t.Errorf("files in each network (-want +got):\n%s", diff)
	}
}

// The longest gap may be as long as the path that dies needs: three of its round trips, and a time by direction.
func TestGapLimits(t *testing.T) {
	_, suite, err := scenarios.Find("selection")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]string{}
	for _, part := range inPlaces(suite.Parts, regexp.MustCompile("^selection/messages-.*-dies"), Options{Messages: DefaultMessages}) {
		p := testPlace(t, part)
		p.runs.Runs = append(p.runs.Runs, testRunOf(t, p, product, 0))
		found, err := p.figures()
		if err != nil {
			t.Fatal(err)
		}
		targets[p.name] = found[0].Target
	}
	want := map[string]string{}
	for _, path := range []string{"direct", "detour"} {
		for variant, target := range map[string]string{"base": "290", "download": "540", "far": "440", "far-download": "690"} {
			want["selection/messages-"+path+"-dies "+variant] = "<= " + target + " ms"
		}
	}
	if diff := cmp.Diff(want, targets); diff != "" {
		t.Errorf("the longest gaps (-want +got):\n%s", diff)
	}
}
