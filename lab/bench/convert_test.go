package bench

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Every relay of this machine carries something in each of the steps.
func smallConvert(t *testing.T, o Options) {
	needs(t, "nft")
	o.HAProxy = "../../.cache/haproxy-3.2/haproxy"
	moment := transferPlan{rampUp: 20 * time.Millisecond, look: 50 * time.Millisecond}
	found, err := compareRelays(t.Context(), o, convertPlan{
		repetitions: 1, transfers: 2, fast: moment, limited: moment, mss: []int{536}, exchange: 20 * time.Millisecond, parallel: 2, sizes: []int{1000},
		trips: 3, idle: 50, descriptors: 1050, delay: time.Millisecond,
		aside: asidePlan{pairs: 6, parallel: 2, size: 20e3, delay: time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	figures := 0
	for _, m := range found {
		if strings.HasSuffix(m.Name, ", "+copyRelay) {
			figures++
		}
		// Memory is counted in pages, and a new connection may take no more time than to the server itself.
		if m.Unit != "bytes" && m.Unit != "round trips" && !strings.HasPrefix(m.Name, "convert: delay") && !(m.Value > 0) {
			t.Errorf("%+v: nothing was measured", m)
		}
	}
	// Goodput up and down: at once, with the processor's time, limited. Connections: each second, processor's time. Round
	// trips, first byte, memory. Small segments, delay, goodput beside idle pairs.
	if want := 2*3 + 2 + 3 + 3; figures != want {
		t.Errorf("%d figures of io.Copy, want %d", figures, want)
	}
	if m := figure(found, "convert: goodput down, "+copyRelay); m.Baseline == nil || !(*m.Ratio > 0) {
		t.Errorf("not compared with forwarding: %+v", m)
	}
}

// What is compared are the quantiles of all requests. The interval is that of pairs.
func TestAsideFigures(t *testing.T) {
	a := aside{plan: asidePlan{size: 20e3}}
	for i := range 100 {
		a.off = append(a.off, 50+float64(i))
		a.auto = append(a.auto, 51.1+float64(i)) // 1.1 ms more: 1.1 % of the median, 0.7 % of the tail
	}
	found := a.figures()
	if len(found) != 4 {
		t.Fatalf("%d figures: %+v", len(found), found)
	}
	for i, want := range []struct {
		value float64
		met   bool
	}{1: {100.6, false}, 3: {149.11, true}} {
		if m := found[i]; want.value != 0 && (math.Abs(m.Value-want.value) > 1e-6 || m.Met == nil || *m.Met != want.met) {
			t.Errorf("%+v", m)
		}
	}
	if want := "the difference is +1.11 % (95 % of the bootstrap's samples of pairs: +1.11 to +1.11 %), or +1.100 ms (+1.100 to +1.100)"; found[1].Note != want {
		t.Errorf("%q, want %q", found[1].Note, want)
	}
}

func figure(found []Measurement, name string) Measurement {
	i := slices.IndexFunc(found, func(m Measurement) bool { return m.Name == name })
	if i < 0 {
		return Measurement{}
	}
	return found[i]
}

// made is a run with these goodputs and processor times of a transfer, in Mbit/s and seconds for each GB.
func made(name string, multipath bool, goodput, perGB []float64) *relayed {
	r := &relayed{relay: relay{name: name, multipath: multipath}, fast: map[direction][]relayTransfer{}, limited: map[direction][]relayTransfer{}}
	if name != forwarded {
		r.command = func(*line, netip.AddrPort, netip.AddrPort) ([]string, error) { return nil, nil }
	}
	for i := range goodput {
		t := relayTransfer{bytes: goodput[i] * 1e6 / 8, seconds: 1}
		t.spent = time.Duration(perGB[i] * t.bytes)
		for _, d := range directions {
			r.fast[d], r.limited[d] = append(r.fast[d], t), append(r.limited[d], t)
		}
	}
	r.first = []float64{160}
	return r
}

func testRun(haproxy bool) *converting {
	c := &converting{plan: convertPlan{idle: 10, delay: 20 * time.Millisecond}, descriptors: 1024, relays: []*relayed{
		made(forwarded, false, []float64{1000, 2000, 1000}, []float64{0, 0, 0}),
		made(engineRelay, true, []float64{500, 1000, 960}, []float64{0.2, 0.3, 0.4}),
		made("HAProxy 2.6, TCP only", false, []float64{400, 400, 400}, []float64{1, 1, 1}),
	}}
	if haproxy {
		c.relays = append(c.relays, made("HAProxy 3.2", true, []float64{250, 500, 960}, []float64{0.5, 0.5, 0.5}))
	}
	return c
}

func TestConvertFigures(t *testing.T) {
	c := testRun(true)
	engine := c.named(engineRelay)
	engine.first, engine.idle, engine.beside, engine.pairs = []float64{204}, []float64{999}, []float64{0.89}, []int{8}
	c.plan.transfers, engine.fast[up][1].repeating = 5, 2
	engine.trips, c.plain().trips = []float64{100, 200, 120}, []float64{60, 60, 60}
	found := c.figures()
	for _, test := range []struct {
		name       string
		value      float64
		ratio      float64 // 0: none
		target     string
		met        bool
		repetition int
	}{
		{"goodput down, forwarding", 1000, 0, "", false, 3},
		{"goodput down, dcol's engine", 960, 0.96, "", false, 3},
		// Of the turns, not of the medians.
		{"goodput down, dcol's engine / HAProxy 3.2", 2, 0, ">= 1.3", true, 3},
		{"goodput up, dcol's engine / HAProxy 3.2", 2, 0, ">= 1", true, 3},
		{"processor time a GB up, dcol's engine", 0.3, 0, "", false, 3},
		{"processor time a GB up, dcol's engine / HAProxy 3.2", 0.6, 0, "<= 0.7", true, 3},
		{"at 1 Gbit/s, goodput up, dcol's engine / forwarding", 0.5, 0, ">= 0.97", false, 3},
		{"connect to first byte, links of 20ms, dcol's engine", 204, 1.275, "", false, 1},
		{"connect to first byte, links of 20ms, beyond forwarding, dcol's engine", 1.1, 0, "<= 1", true, 1},
		{"user memory of an idle pair, dcol's engine", 999, 0, "<= 1 kB", true, 1},
		{"goodput down beside idle pairs, of that without, dcol's engine", 0.89, 0, ">= 0.9", false, 1},
		{"delay of data in the relay, dcol's engine", 30, 0, "", false, 3},
	} {
		m := figure(found, "convert: "+test.name)
		if math.Abs(m.Value-test.value) > 1e-6 || m.Repetitions != test.repetition || m.Target != test.target {
			t.Errorf("%s: %+v", test.name, m)
			continue
		}
		if (m.Ratio != nil) != (test.ratio != 0) || m.Ratio != nil && math.Abs(*m.Ratio-test.ratio) > 1e-6 {
			t.Errorf("%s: ratio %v, want %v", test.name, number(m.Ratio), test.ratio)
		}
		if test.target != "" && *m.Met != test.met {
			t.Errorf("%s: met is %t", test.name, *m.Met)
		}
	}
	if m := figure(found, "convert: processor time a GB up, forwarding"); m.Name != "" {
		t.Errorf("forwarding has no process: %+v", m)
	}
	if m := figure(found, "convert: goodput up, dcol's engine"); !strings.HasSuffix(m.Note, "sent data again in 2 of 15 transfers") {
		t.Errorf("the note about transfers that stood still: %q", m.Note)
	}
	if m := figure(found, "convert: user memory of an idle pair, dcol's engine"); !strings.HasPrefix(m.Note, "with 8 pairs: the limit") {
		t.Errorf("less pairs than planned: %q", m.Note)
	}
}

// Without a HAProxy that has MPTCP, what is compared with it is left out, with the reason.
func TestConvertWithoutHAProxy(t *testing.T) {
	c := testRun(false)
	c.notes = []string{"without HAProxy 3.2: it is not there"}
	found := c.figures()
	for _, m := range found {
		if strings.Contains(m.Name, "/ HAProxy") {
			t.Errorf("%+v", m)
		}
	}
	if !strings.HasPrefix(found[0].Note, "without HAProxy 3.2: it is not there; ") {
		t.Errorf("the note is %q", found[0].Note)
	}
}

func TestFindRelays(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	all, missing := findRelays(t.Context(), "nowhere/haproxy", 1024)
	var names []string
	for _, r := range all {
		names = append(names, r.name)
	}
	if diff := cmp.Diff([]string{forwarded, engineRelay, convertRelay, copyRelay}, names); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(missing) != 2 || !strings.Contains(missing[0], "apt-get install haproxy") || !strings.Contains(missing[1], "scripts/haproxy.sh") {
		t.Errorf("%q", missing)
	}
}

func TestParseRepeated(t *testing.T) {
	for text, want := range map[string]int{
		"TcpExt: MPTCPRetrans\nTcpExt: 7\nMPTcpExt: MPCapableSYNRX MPTCPRetrans\nMPTcpExt: 5 3\n": 3,
		"MPTcpExt: MPCapableSYNRX\nMPTcpExt: 5\n":                                                 0,
		"MPTcpExt: MPCapableSYNRX MPTCPRetrans\nMPTcpExt: 5\n":                                    0,
		"": 0,
	} {
		if got := parseRepeated(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// The result names the exact version of a HAProxy.
func TestHAProxyIsNamed(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	program := filepath.Join(dir, "haproxy-3.2")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho HAProxy version 3.2.26-1 2026/10/14\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	all, notes := findRelays(t.Context(), program, 1024)
	if last := all[len(all)-1]; last.name != multipathHAProxy+", splice-auto" {
		t.Errorf("the last relay is %q", last.name)
	}
	if want := "HAProxy 3.2 is version 3.2.26-1"; len(notes) != 2 || notes[1] != want {
		t.Errorf("the notes are %q, want %q as the last", notes, want)
	}
}

func TestHAProxyVersion(t *testing.T) {
	for text, want := range map[string]string{
		"HAProxy version 3.2.26-1 2026/10/14 - https://haproxy.org/\nStatus: long-term": "3.2.26-1",
		"HAProxy version 2.6.12-1+deb12u4 2026/01/02 - https://haproxy.org/\n":          "2.6.12-1+deb12u4",
		"haproxy: not found":      "",
		"HAProxy version unknown": "",
		"":                        "",
	} {
		got, err := parseHAProxyVersion(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	if got := release("2.6.12-1+deb12u4"); got != "2.6" {
		t.Errorf("release %s", got)
	}
}

func TestHAProxyConfig(t *testing.T) {
	at, to := netip.MustParseAddrPort("10.0.0.1:7000"), netip.MustParseAddrPort("10.0.0.2:8000")
	plain := haproxyConfig(at, to, 20000, false, false)
	for _, want := range []string{"\tmaxconn 9600\n", "\tbind ipv4@10.0.0.1:7000\n", "\tserver server ipv4@10.0.0.2:8000\n"} {
		if !strings.Contains(plain, want) {
			t.Errorf("no %q in\n%s", want, plain)
		}
	}
	if strings.Contains(plain, "splice") {
		t.Errorf("it splices:\n%s", plain)
	}
	multipath := haproxyConfig(at, to, 20000, true, true)
	for _, want := range []string{"\tbind mptcp4@10.0.0.1:7000\n", "\toption splice-auto\nlisten"} {
		if !strings.Contains(multipath, want) {
			t.Errorf("no %q in\n%s", want, multipath)
		}
	}
}

func TestIdlePairs(t *testing.T) {
	for _, test := range []struct {
		perPair, descriptors int
		want                 []int
	}{
		{2, 21000, []int{10000}}, {2, 20800, []int{9900, 100}}, {2, 20000, []int{9500, 500}}, {6, 20000, []int{3100, 3100, 3100, 700}},
		{2, 1 << 17, []int{10000}}, {2, 3000, []int{1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000}},
	} {
		if got := (relay{perPair: test.perPair}).idlePairs(10000, test.descriptors); !slices.Equal(got, test.want) {
			t.Errorf("%d descriptors, %d a pair: %d pairs, want %d", test.descriptors, test.perPair, got, test.want)
		}
	}
}

// HAProxy has room for other connections beside the idle ones.
func TestHAProxyHasRoom(t *testing.T) {
	const descriptors = 20000
	idle := relay{perPair: 2}.idlePairs(20000, descriptors)[0]
	var most int
	_, after, _ := strings.Cut(haproxyConfig(netip.AddrPort{}, netip.AddrPort{}, descriptors, true, false), "maxconn ")
	if _, err := fmt.Sscan(after, &most); err != nil || most < idle+spareConnections {
		t.Errorf("%d connections at most, %d of them idle: %v", most, idle, err)
	}
}

// Another relay that stands still beside idle pairs is noted once. dcol's own ends the run, as does any other error.
func TestStandsStillBesideIdlePairs(t *testing.T) {
	still := fmt.Errorf("a transfer: %w", errStandsStill)
	for _, x := range []struct {
		name        string
		err         error
		fails, kept bool
	}{
		{"HAProxy 3.2", nil, false, true}, {"HAProxy 3.2", still, false, false}, {"HAProxy 3.2", errors.New("it ended"), true, false},
		{engineRelay, nil, false, true}, {engineRelay, still, true, false},
	} {
		var c converting
		r := &relayed{relay: relay{name: x.name}}
		err := c.tookIdle(r, 1, 1, x.err)
		noted := x.err != nil && !x.fails
		c.relays = []*relayed{r}
		if noted {
			err = c.tookIdle(r, 1, 1, x.err)
		}
		notes := c.allNotes()
		if (err != nil) != x.fails || (len(r.idle) == 1 && len(r.beside) == 1) != x.kept || (len(notes) == 1) != noted {
			t.Errorf("%s, %v: %v, %+v, notes %q", x.name, x.err, err, r, notes)
		}
		if noted && notes[0] != "HAProxy 3.2 beside 0 idle pairs, 2 times of 2: nothing arrives within 10s" {
			t.Errorf("%q", notes)
		}
	}
}
