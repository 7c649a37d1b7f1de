package experiment

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/stats"
)

func TestParseIperf(t *testing.T) {
	data, err := os.ReadFile("testdata/iperf3.json")
	if err != nil {
		t.Fatal(err)
	}
	// The sender's end has less in its intervals than the receiver's, and 0.2 s are past the end.
	for download, want := range map[bool]received{
		false: {bytes: 10965704, seconds: 9.000015, steady: 9.644665}, true: {bytes: 10946880, seconds: 9.000065, steady: 9.731827},
	} {
		got, err := parseIperf(data, download, 9)
		if err != nil || got.bytes != want.bytes || math.Abs(got.seconds-want.seconds) > 1e-6 || math.Abs(got.steady-want.steady) > 1e-3 {
			t.Errorf("download %v: %+v, %v", download, got, err)
		}
		if mean := stats.Mean(got.rates); len(got.rates) != 9 || math.Abs(mean-float64(want.bytes)*8/1e6/want.seconds) > 1e-3 {
			t.Errorf("download %v: in each second %v", download, got.rates)
		}
	}
	// The server of iperf3 3.12 closed the omitted interval late, and takes the one after it for two seconds long.
	overlong := `{"server_output_json": {"intervals": [
		{"sum": {"start": 0, "end": 1.000158, "seconds": 1.000158, "bytes": 1136680, "omitted": true}},
		{"sum": {"start": 0.999989, "end": 1.000082, "seconds": 2.000071, "bytes": 1206184, "omitted": false}},
		{"sum": {"start": 1.000082, "end": 2.000061, "seconds": 0.999979, "bytes": 1207632, "omitted": false}},
		{"sum": {"start": 2.000061, "end": 2.118096, "seconds": 0.118035, "bytes": 141904, "omitted": false}}]}}`
	if got, err := parseIperf([]byte(overlong), false, 2); err != nil || got.bytes != 2413816 || got.seconds != 2.000061 || got.steady != 0 ||
		len(got.rates) != 2 || math.Abs(got.rates[0]-9.649) > 1e-3 {
		t.Errorf("with an interval said to be too long: %+v, %v", got, err)
	}
	for bad, want := range map[string]string{
		"": "read iperf3's report",
		`{"error": "unable to connect to server: Connection refused"}`: "Connection refused",
		`{"intervals": []}`: "nothing received",
		`{"server_output_json": {"intervals": [{"sum": {"end": 9.2, "bytes": 7}}]}}`: "nothing received",
	} {
		if _, err := parseIperf([]byte(bad), false, 9); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", bad, err, want)
		}
	}
}

func FuzzParseIperf(f *testing.F) {
	f.Add([]byte(`{"server_output_json": {"intervals": [{"sum": {"end": 1, "bytes": 7}}]}}`))
	f.Add([]byte(`{"error": "no"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := parseIperf(data, false, 9); err == nil && !(got.seconds > 0) {
			t.Errorf("took %+v for a measurement", got)
		}
	})
}

func TestExpand(t *testing.T) {
	got := expand([]string{"get", "-b{local}", "http://{address}:{port}/", "{port}", "-x{proxy}"}, netip.MustParseAddrPort("192.0.2.1:80"),
		netip.MustParseAddr("192.0.2.9"), "socks5://127.0.0.1:1080")
	if want := []string{"get", "-b192.0.2.9", "http://192.0.2.1:80/", "80", "-xsocks5://127.0.0.1:1080"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The sampler's arithmetic, on samples made up.
func TestSamplerArithmetic(t *testing.T) {
	at := func(ms, direct, detour int64) sample {
		return sample{at: time.Duration(ms) * time.Millisecond, bytes: map[string]int64{"direct": direct, "w": detour}}
	}
	s := &sampler{
		paths: []string{"direct", "w", "idle"}, client: &hostSockets{}, ends: []*hostSockets{{}},
		samples: []sample{at(0, 0, 0), at(200, 0, 0), at(250, 31250, 0), at(500, 62500, 31250), at(900, 62500, 31250), at(1000, 93750, 31250)},
	}
	if got := s.at("direct", 375*time.Millisecond); got != 46875 {
		t.Errorf("half way from 31250 to 62500 is %v", got)
	}
	if got := s.at("", 2*time.Second); got != 125000 {
		t.Errorf("after the last sample %v", got)
	}
	series := s.series(time.Second)
	if len(series.Paths) != 2 {
		t.Fatalf("paths %v, want those that carried something", series.Paths)
	}
	sum := 0.0
	for _, p := range series.Paths {
		for _, v := range p.Mbps {
			sum += v * series.StepSeconds / 8 * 1e6
		}
	}
	if math.Abs(sum-125000) > 1 {
		t.Errorf("the series holds %v bytes of 125000", sum)
	}
	if want := []float64{1, 1, 0, 1}; !approx(series.Paths[0].Mbps[:2], want[:2]) {
		t.Errorf("direct: %v Mbit/s, want it to begin %v", series.Paths[0].Mbps, want[:2])
	}
	if got := s.longestStall(time.Second); got != 400*time.Millisecond {
		t.Errorf("stalled for %v, want 400ms: the wait for the first byte is none", got)
	}
}

func approx(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Abs(x-y) < 1e-9 })
}

func TestStrain(t *testing.T) {
	sound := report.LinkUse{Link: "1", From: "a", To: "b", Packets: 100, QueueDrops: 5, LossDrops: 3, LatenessP99MS: 0.2, LatenessMaxMS: 9}
	upload := scenario.Workload{Kind: scenario.Upload}
	late, broken := sound, sound
	late.LatenessP99MS, broken.EmulationDrops = 5, 1
	if _, _, why := runner.Judge(upload, report.Run{Links: []report.LinkUse{sound}, ReferenceP99MS: 0.4}); why != "" {
		t.Errorf("a sound run was refused: %s", why)
	}
	for _, u := range []report.LinkUse{late, broken} {
		run := report.Run{Links: []report.LinkUse{sound, u}}
		if _, _, why := runner.Judge(upload, run); !strings.Contains(why, "link 1") {
			t.Errorf("%+v: %q", u, why)
		}
		if got, _, _ := runner.Judge(upload, run); got <= 1 {
			t.Errorf("%+v: strain %v of a run that does not count", u, got)
		}
	}
	busy, idle := sound, late
	busy.Packets, idle.Packets = 1000, 9
	if got, _, why := runner.Judge(upload, report.Run{Links: []report.LinkUse{busy, idle}}); got > 1 {
		t.Errorf("a link that carried next to nothing decided: %s", why)
	}
	for _, c := range []struct {
		workload scenario.Workload
		sound    float64 // ms
	}{{upload, 20}, {scenario.Workload{Kind: scenario.Requests}, 3}} {
		if _, cause, why := runner.Judge(c.workload, report.Run{ReferenceP99MS: c.sound}); why != "" {
			t.Errorf("%s: %s %s", c.workload.Kind, cause, why)
		}
		_, cause, why := runner.Judge(c.workload, report.Run{ReferenceP99MS: c.sound + 0.5})
		if want := fmt.Sprintf("echoes came more than %.1f ms late (at most %vms", c.sound+0.5, c.sound); cause != report.CauseLateReference || !strings.Contains(why, want) {
			t.Errorf("%s: %s %q", c.workload.Kind, cause, why)
		}
		if got, _, _ := runner.Judge(c.workload, report.Run{Links: []report.LinkUse{sound}, ReferenceP99MS: c.sound / 2}); got != 0.5 {
			t.Errorf("%s: half of what is sound is a strain of %v", c.workload.Kind, got)
		}
	}
}

func TestMeter(t *testing.T) {
	m := newMeter()
	began := time.Now()
	for i, at := range []int{100, 200, 600, 700} {
		m.notes = append(m.notes, note{began.Add(time.Duration(at) * time.Millisecond), int64(1000 * (i + 1))})
	}
	seconds, carried, err := m.since(began.Add(250 * time.Millisecond))
	if err != nil || carried != 2000 || math.Abs(seconds-0.45) > 1e-9 {
		t.Errorf("%v bytes in %v s, %v; want 2000 in 0.45", carried, seconds, err)
	}
	if got := m.longestStall(); got != 400*time.Millisecond {
		t.Errorf("stalled for %v", got)
	}
	if _, _, err := m.since(began.Add(time.Second)); err == nil {
		t.Error("a download that was over before the skip was measured")
	}
}

func TestMarks(t *testing.T) {
	down := true
	events := []scenario.Event{
		{At: units.Duration(2 * time.Second), Kill: "w"},
		{At: units.Duration(3 * time.Second), Change: scenario.Change{Link: "2"}, Down: &down},
	}
	marks := Marks(events)
	if marks[0] != (report.Mark{Seconds: 2, Label: "w killed"}) || marks[1].Label != "link 2 down" {
		t.Errorf("%+v", marks)
	}
}
