package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/detour-collective/dcol/internal/api"
)

func some() api.Status {
	since := time.Unix(1_700_000_000, 0)
	fast := 3
	at := netip.MustParseAddrPort("192.0.2.7:45672")
	return api.Status{
		Member: "alice", Version: "v1", Since: since, Problems: []string{"the clock is wrong"},
		Client: &api.Using{
			Connections: []api.Connection{{Remote: netip.MustParseAddrPort("203.0.113.5:443"), Subflows: []api.Subflow{
				{Kind: "direct", State: "up"}, {Kind: "mapped", Waypoint: "bob", State: "backup"}, {Kind: "mapped", Waypoint: "bob", State: "backup"},
			}}},
			Waypoints: []api.Waypoint{{Name: "bob", Addr: at, State: api.WaypointUp, RTT: 12.5, Loss: 0.01}, {Name: "carol", Addr: at, State: api.WaypointDown}},
			Counters: api.Counters{
				Connections: 7, SubflowsAsked: 6, SubflowsUp: 5, SubflowsRefused: 1,
				Carried:   []api.Carried{{Kind: "direct", Received: 1000, Sent: 10}, {Kind: "mapped", Waypoint: "bob", Received: 500, Sent: 5}},
				Lifetimes: api.Histogram{Bounds: []float64{1, 10}, Counts: []uint64{3, 2, 1}, Sum: 42},
			},
		},
		Serving: &api.Serving{
			Sessions: 2, Granted: 9, Refused: map[string]int{"destination-forbidden": 4}, FastFlows: &fast, InBand: &api.InBand{Accepted: 8, Replayed: 1},
			Members: []api.Served{{Member: "x", Flows: 2, Bytes: 20}, {Member: "y", Flows: 1, Bytes: 1}, {Member: "asleep"}, {Member: "mallory", Expelled: true}}, Given: api.Given{Open: true, QuotaBytes: 100, UsedBytes: 50},
		},
		Relay:       &api.Relay{Parts: []api.RelayPart{{Name: "proxy", Open: 1, Accepted: 2, Refused: 3, Bytes: 4}}},
		Collective:  &api.Collective{Members: 12, Certificate: api.Certificate{Until: since.Add(time.Hour)}},
		Coordinator: &api.Coordinator{Members: 12, Unreachable: []string{"bob"}, Messages: 5},
	}
}

func always(s api.Status) Status {
	return func(context.Context) (api.Status, error) { return s, nil }
}

func scrape(t *testing.T, status Status) (code int, text string) {
	t.Helper()
	answer := httptest.NewRecorder()
	Handler(status, slog.New(slog.DiscardHandler)).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, Path, nil))
	return answer.Code, answer.Body.String()
}

func TestScrape(t *testing.T) {
	code, text := scrape(t, always(some()))
	if code != http.StatusOK {
		t.Fatalf("status %d: %s", code, text)
	}
	for _, line := range []string{
		`dcol_info{member="alice",version="v1"} 1`,
		`dcol_start_time_seconds 1.7e+09`,
		`dcol_problems 1`,
		`dcol_connections_total 7`,
		`dcol_subflows{kind="mapped",state="backup",waypoint="bob"} 2`,
		`dcol_path_received_bytes_total{kind="direct",waypoint=""} 1000`,
		`dcol_path_sent_bytes_total{kind="mapped",waypoint="bob"} 5`,
		`dcol_connection_duration_seconds_bucket{le="10"} 5`,
		`dcol_connection_duration_seconds_bucket{le="+Inf"} 6`,
		`dcol_connection_duration_seconds_sum 42`,
		`dcol_waypoint_up{address="192.0.2.7",waypoint="bob"} 1`,
		`dcol_waypoint_up{address="192.0.2.7",waypoint="carol"} 0`,
		`dcol_waypoint_round_trip_seconds{address="192.0.2.7",waypoint="bob"} 0.0125`,
		`dcol_served_connections 3`,
		`dcol_requests_refused_total{reason="destination-forbidden"} 4`,
		`dcol_in_band_syns_rejected_total{reason="replayed"} 1`,
		`dcol_quota_used_bytes 50`,
		`dcol_relay_connections{part="proxy"} 1`,
		`dcol_certificate_expires_timestamp_seconds 1.7000036e+09`,
		`dcol_coordinator_unreachable_waypoints 1`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("lacks %s", line)
		}
	}
	if strings.Contains(text, "203.0.113.5") {
		t.Error("a metric names a destination")
	}
	if strings.Contains(text, `waypoint_round_trip_seconds{address="192.0.2.7",waypoint="carol"`) {
		t.Error("a waypoint without a session has a round trip")
	}
}

// The number of series does not grow with the numbers of connections, servers, members and messages.
func TestCardinality(t *testing.T) {
	series := func(s api.Status) (n int) {
		_, text := scrape(t, always(s))
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "dcol_") {
				n++
			}
		}
		return n
	}
	few, many := some(), some()
	for i := range 1000 {
		c := few.Client.Connections[0]
		c.Token, c.Remote = fmt.Sprint(i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), uint16(i))
		many.Client.Connections = append(many.Client.Connections, c)
		many.Client.Plain = append(many.Client.Plain, c.Remote)
		many.Serving.Members = append(many.Serving.Members, api.Served{Member: fmt.Sprint("m", i), Flows: 1})
		many.Coordinator.Unreachable = append(many.Coordinator.Unreachable, fmt.Sprint("m", i))
		many.Problems = append(many.Problems, fmt.Sprint("problem ", i))
	}
	if a, b := series(few), series(many); a < 30 || a != b {
		t.Errorf("there are %d series, and %d with a thousand of each", a, b)
	}
}

// Names and texts follow Prometheus' conventions, and no series occurs twice.
func TestConventions(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&agent{status: always(some())})
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v: %v", err, problems)
	}
}

func TestRolesThatAreNotThere(t *testing.T) {
	code, text := scrape(t, always(api.Status{Member: "alice"}))
	if code != http.StatusOK || !strings.Contains(text, "dcol_problems 0") || strings.Contains(text, "dcol_connections") {
		t.Errorf("status %d\n%s", code, text)
	}
}

func TestAgentThatFails(t *testing.T) {
	code, text := scrape(t, func(context.Context) (api.Status, error) { return api.Status{}, errors.New("it stops") })
	if code != http.StatusInternalServerError || !strings.Contains(text, "it stops") {
		t.Errorf("status %d: %s", code, text)
	}
}

func TestServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, always(some()), slog.New(slog.DiscardHandler)) }()
	for path, want := range map[string]int{Path: http.StatusOK, "/": http.StatusNotFound} {
		answer, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %s", path, answer.Status)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The alert rules and the dashboard name only metrics that exist.
func TestFilesNameWhatExists(t *testing.T) {
	_, text := scrape(t, always(some()))
	var exists []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (dcol_\w+) `).FindAllStringSubmatch(text, -1) {
		exists = append(exists, m[1], m[1]+"_bucket")
	}
	for _, file := range []string{"../../packaging/prometheus/dcol.rules.yml", "../../packaging/grafana/dcol.json"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`\bdcol_\w+`).FindAllString(string(data), -1)
		if len(names) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range names {
			if !slices.Contains(exists, name) {
				t.Errorf("%s names %s, which does not exist", file, name)
			}
		}
	}
}

// Every metric is in docs/metrics.md.
func TestEveryMetricIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text := scrape(t, always(some()))
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (dcol_\w+) `).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(string(doc), "`"+m[1]+"`") {
			t.Errorf("docs/metrics.md does not explain %s", m[1])
		}
	}
}
