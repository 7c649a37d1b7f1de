package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/analyse"
	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/svgchart"
)

// The addresses are of the sample trace that comes with Crypto-PAn (Fan, 2002), with its key.
func TestCryptoPAn(t *testing.T) {
	a, err := NewAnonymiser([]byte{
		21, 34, 23, 141, 51, 164, 207, 128, 19, 10, 91, 22, 73, 144, 125, 16,
		216, 152, 143, 131, 121, 121, 101, 39, 98, 87, 76, 45, 42, 132, 34, 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]string{
		"128.11.68.132": "135.242.180.132", "129.118.74.4": "134.136.186.123", "130.132.252.244": "133.68.164.234",
	} {
		if got := a.Addr(netip.MustParseAddr(from)); got.String() != want {
			t.Errorf("%s: %v, want %s", from, got, want)
		}
	}
}

// Two addresses share as many bits afterwards as before.
func TestPrefixesArePreserved(t *testing.T) {
	a, err := NewAnonymiser(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]string{
		{"192.0.2.1", "192.0.2.2"}, {"192.0.2.1", "192.0.3.1"}, {"10.0.0.1", "203.0.113.1"}, {"192.0.2.1", "192.0.2.1"},
		{"2001:db8::1", "2001:db8::2"}, {"2001:db8::1", "2001:db8:0:1::1"}, {"2001:db8::1", "fd00::1"},
	} {
		x, y := netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1])
		if before, after := common(x, y), common(a.Addr(x), a.Addr(y)); before != after {
			t.Errorf("%v and %v share %d bits, then %d", x, y, before, after)
		}
		if a.Addr(x).BitLen() != x.BitLen() {
			t.Errorf("%v became %v", x, a.Addr(x))
		}
	}
	if _, err := NewAnonymiser([]byte("short")); err == nil {
		t.Error("a short key was taken")
	}
}

func common(a, b netip.Addr) int {
	for bits := range a.BitLen() {
		if p, _ := a.Prefix(bits + 1); !p.Contains(b) {
			return bits
		}
	}
	return a.BitLen()
}

func TestHistogram(t *testing.T) {
	var h, other Histogram
	for i := 1; i <= 10000; i++ {
		if i%2 == 0 {
			h.Add(float64(i))
		} else {
			other.Add(float64(i))
		}
	}
	h.merge(&other)
	for share, want := range map[float64]float64{0.1: 1000, 0.5: 5000, 0.99: 9900, 1: 10000} {
		if got := h.Quantile(share); math.Abs(got-want) > want*0.025 {
			t.Errorf("quantile %v: %v, want %v", share, got, want)
		}
	}
	q := h.Quantiles()
	if q.Count != 10000 || q.Min != 1 || q.Max != 10000 || q.Mean != 5000.5 {
		t.Errorf("%+v", q)
	}
	var zeros Histogram
	zeros.Add(0)
	zeros.Add(0)
	zeros.Add(8)
	if got := zeros.Quantile(0.5); got != 0 {
		t.Errorf("median %v", got)
	}
	if (&Histogram{}).Quantiles() != nil {
		t.Error("no values have quantiles")
	}
}

func record() *track.Record {
	rtt, delay := 0.015625, 0.5 // sums of which are exact
	version := 1
	address := netip.MustParseAddr("203.0.113.9")
	return &track.Record{
		Number: 3, Began: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Duration: 60, Version: &version, Tokens: []uint32{0x1a2b3c4d},
		FromClient: 1000, FromServer: 2e6, End: track.EndDataFIN, Shape: "fullmesh", Packets: 2000,
		Subflows: []track.Subflow{
			{Client: netip.MustParseAddrPort("192.0.2.1:40000"), Server: netip.MustParseAddrPort("203.0.113.5:443"), Initial: true, State: "closed", RTT: &rtt, RTTSamples: 5,
				FromServer: track.Direction{NewData: 2e6}},
			{Client: netip.MustParseAddrPort("[2001:db8::1]:40001"), Server: netip.MustParseAddrPort("[2001:db8:5::5]:443"), State: "established", JoinDelay: &delay, Unused: true},
		},
		Signals:   []track.Signal{{Kind: track.AddAddr, Address: &address}},
		Fallback:  &track.Fallback{Cause: track.CauseChecksum, At: 3},
		Anomalies: map[string]uint64{"wrong-hmac": 2},
		Trace: &track.Trace{
			Segments: []track.Segment{
				{Time: 1772366401e9, Start: 100, Length: 1400, From: track.Server},
				{Time: 1772366402e9, Start: 100, Length: 1400, From: track.Server, Subflow: 1, Kind: track.Reinjected},
			},
			Acks:       []track.Ack{{Time: 1772366403e9, Number: 1500, Of: track.Server}},
			RoundTrips: []track.RoundTrip{{Time: 1772366403e9, Length: 2e7, Of: track.Server}},
		},
	}
}

// eventful is a connection with events of all kinds.
func eventful() *track.Record {
	r := record()
	number := func(v float64) *float64 { return &v }
	one, reason := 1, 6
	r.Subflows[1].State, r.Subflows[1].OpenedBy, r.Subflows[1].Began = "reset", "client", 0.5
	r.Subflows[1].Ended, r.Subflows[1].EndedBy, r.Subflows[1].Reset, r.Subflows[1].RTTChange = number(6), "client", &reason, number(0.25)
	r.Subflows[0].FromServer.RTTOverTime = &track.RTTOverTime{From: 0, Period: 30, Means: []float64{0.25, 0.5}, Samples: []uint32{2, 4}}
	r.Signals = []track.Signal{
		{Kind: track.AddAddr, From: "server", IDs: []int{2}, Address: r.Signals[0].Address, Echo: number(0.02), Followed: 1},
		{At: 5, Kind: track.RemoveAddr, From: "client", IDs: []int{3}, Repeats: 2},
		{At: 4, Kind: track.Priority, From: "client", IDs: []int{2}, Backup: true, Subflow: &one, Data: 1234},
	}
	r.Handovers = []track.Handover{
		{At: 8, From: 0, To: 1, Gap: 0.5, Kind: "make-before-break", Why: "silent"}, {At: 7, From: 1, To: 0, Gap: 0.75, Kind: "make-before-break", Why: "reset"},
	}
	r.Reinjected, r.Reinjections, r.ReinjectedAfter = 4200, 3, map[string]uint64{"loss": 2, "head-of-line": 1}
	r.Anomalies["malformed-option"] = 1
	return r
}

func TestFilter(t *testing.T) {
	at := func(text string) time.Time {
		v, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	prefix := netip.MustParsePrefix
	for name, c := range map[string]struct {
		filter Filter
		want   bool
	}{
		"nothing":                {Filter{}, true},
		"address":                {Filter{Addresses: []netip.Prefix{prefix("192.0.2.1/32")}}, true},
		"of the second subflow":  {Filter{Addresses: []netip.Prefix{prefix("2001:db8:5::/48")}}, true},
		"another address":        {Filter{Addresses: []netip.Prefix{prefix("198.51.100.0/24")}}, false},
		"port":                   {Filter{Ports: []uint16{80, 443}}, true},
		"another port":           {Filter{Ports: []uint16{80}}, false},
		"token":                  {Filter{Tokens: []uint32{0x1a2b3c4d}}, true},
		"another token":          {Filter{Tokens: []uint32{1}}, false},
		"alive then":             {Filter{Since: at("2026-03-01T12:00:30Z"), Until: at("2026-03-01T12:00:40Z")}, true},
		"ended before":           {Filter{Since: at("2026-03-01T12:01:01Z")}, false},
		"began later":            {Filter{Until: at("2026-03-01T11:59:59Z")}, false},
		"address, but no port":   {Filter{Addresses: []netip.Prefix{prefix("192.0.2.1/32")}, Ports: []uint16{80}}, false},
		"address and right port": {Filter{Addresses: []netip.Prefix{prefix("192.0.2.1/32")}, Ports: []uint16{40001}}, true},
	} {
		if got := c.filter.Matches(record()); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAnonymisedRecord(t *testing.T) {
	a, err := NewAnonymiser(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := record()
	a.Record(r)
	var out bytes.Buffer
	var totals Totals
	totals.Add(r)
	connections, subflows, roundTrips := new(bytes.Buffer), new(bytes.Buffer), new(bytes.Buffer)
	tables, err := NewCSV(connections, subflows, roundTrips)
	if err != nil {
		t.Fatal(err)
	}
	object, err := NewJSON(&out)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		tables.Write(r), tables.Flush(), object.Write(r), object.Close(analyse.Counts{}, &totals), WriteConnection(&out, r), WritePage(&out, analyse.Counts{}, &totals, r),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	all := out.String() + connections.String() + subflows.String() + roundTrips.String()
	for _, secret := range []string{"192.0.2.1", "203.0.113", "2001:db8", "439041101", "1a2b3c4d"} {
		if strings.Contains(all, secret) {
			t.Errorf("%s is in the output", secret)
		}
	}
}

func TestTables(t *testing.T) {
	connections, subflows, roundTrips := new(bytes.Buffer), new(bytes.Buffer), new(bytes.Buffer)
	tables, err := NewCSV(connections, subflows, roundTrips)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tables.Write(eventful()), tables.Flush()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		from *bytes.Buffer
		rows int
		want map[string]string // in the last row
	}{
		"connections": {connections, 2, map[string]string{
			"number": "3", "tokens": "0x1a2b3c4d", "fallback": "checksum", "fallback_at_s": "3", "reinjections_after_loss": "2", "reinjections_after_head_of_line": "1",
			"reinjections_after_timeout": "0", "handovers": "2", "longest_handover_gap_s": "0.75", "add_addr": "1", "add_addr_echoed": "1", "add_addr_followed": "1",
			"remove_addr": "1", "remove_addr_repeated": "2", "mp_prio": "1", "mp_prio_followed": "1", "anomalies": "malformed-option=1 wrong-hmac=2",
		}},
		"subflows":    {subflows, 3, map[string]string{"subflow": "1", "unused": "true", "reset_reason": "6", "rtt_change_s": "0.25", "mp_fail": "false"}},
		"round trips": {roundTrips, 3, map[string]string{"connection": "3", "subflow": "0", "data_of": "server", "from_s": "30", "to_s": "60", "rtt_s": "0.5", "samples": "4"}},
	} {
		rows, err := csv.NewReader(c.from).ReadAll() // which checks that all have the same number of columns
		if err != nil || len(rows) != c.rows {
			t.Fatalf("%s: %d rows, %v", name, len(rows), err)
		}
		got := map[string]string{}
		for i, column := range rows[0] {
			got[column] = rows[len(rows)-1][i]
		}
		if len(got) != len(rows[0]) {
			t.Errorf("%s: a column is there twice: %q", name, rows[0])
		}
		for column, want := range c.want {
			if got[column] != want {
				t.Errorf("%s: %s is %q, want %q", name, column, got[column], want)
			}
		}
	}
}

// What happened on a connection is told in the order of time.
func TestEvents(t *testing.T) {
	var out bytes.Buffer
	if err := WriteConnection(&out, eventful()); err != nil {
		t.Fatal(err)
	}
	want := `
connection 3: version 1, began 2026-03-01T12:00:00Z, 60 s, 1.0 kB up, 2.0 MB down, ended by DATA_FIN; fell back after 3 s: MP_FAIL after a wrong checksum: a middlebox changed the data
  tokens 0x1a2b3c4d
  0  192.0.2.1:40000 to 203.0.113.5:443, closed, 0 B up, 2.0 MB down, RTT 15.6 ms
  1  [2001:db8::1]:40001 to [2001:db8:5::5]:443, reset, 0 B up, 0 B down, RTT unknown
  Reinjected: 4.2 kB in 3 segments (2 after a loss, 1 as the other subflow was quicker).
  Note: malformed MPTCP options: 1.
  Note: wrong HMACs: 2.
  after 0 s: ADD_ADDR of the server: 203.0.113.9, ID 2, echoed after 20 ms, followed by 1 join
  after 500 ms: subflow 1 joined, opened by the client
  after 3 s: fallback to plain TCP: MP_FAIL after a wrong checksum: a middlebox changed the data
  after 4 s: MP_PRIO of the client: subflow 1 is a backup, 1.2 kB on it afterwards
  after 5 s: REMOVE_ADDR of the client: ID 3, sent again 2 times
  after 6 s: subflow 1 reset by the client, reason 6
  after 7 s: handover from subflow 1 (reset) to subflow 0, make-before-break, without new data for 750 ms
  after 8 s: handover from subflow 0 (no answer any more) to subflow 1, make-before-break, without new data for 500 ms
`
	if out.String() != want {
		t.Errorf("%s\nwant %s", &out, want)
	}
	many := eventful()
	for range maxEvents {
		many.Signals = append(many.Signals, many.Signals[0])
	}
	if list, more := events(many); len(list) != maxEvents || more != 8 {
		t.Errorf("%d events, and %d more", len(list), more)
	}
}

func TestJSON(t *testing.T) {
	for n := range 3 {
		var out bytes.Buffer
		var totals Totals
		object, err := NewJSON(&out)
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			totals.Add(record())
			if err := object.Write(record()); err != nil {
				t.Fatal(err)
			}
		}
		if err := object.Close(analyse.Counts{Packets: 7}, &totals); err != nil {
			t.Fatal(err)
		}
		var got struct {
			Schema      string
			Connections []track.Record
			Capture     analyse.Counts
			Summary     Summary
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		if got.Schema != Schema || len(got.Connections) != n || got.Capture.Packets != 7 || got.Summary.Connections != uint64(n) {
			t.Errorf("%+v", got)
		}
	}
}

// Merged totals are those of one worker.
func TestMerge(t *testing.T) {
	var whole, first, second Totals
	for i := range 2 * mostListed {
		r := record()
		r.Number = uint32(i)
		r.FromServer += uint64(15 * (i * 7 % 11)) // their rates and sums are exact
		whole.Add(r)
		if i%3 == 0 {
			first.Add(r)
		} else {
			second.Add(r)
		}
	}
	var merged Totals
	merged.Merge(&first)
	merged.Merge(&second)
	if len(merged.Largest) != mostListed || !slices.Equal(merged.Largest, whole.Largest) {
		t.Errorf("%+v\nwant %+v", merged.Largest, whole.Largest)
	}
	a, err := json.Marshal(whole.Summary())
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(merged.Summary())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("%s\nwant %s", b, a)
	}
}

func TestWords(t *testing.T) {
	var totals Totals
	totals.Add(record())
	var out bytes.Buffer
	counts := analyse.Counts{Packets: 12345, MPTCP: 2000, ClockSteps: 2, Problems: []string{"a.pcap: it ends within a packet"}}
	if err := totals.WriteWords(&out, counts); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"12,345 packets", "1 MPTCP connection (1 of version 1), 2.0 MB of data, 2 subflows from 2 client addresses in 1 prefix, over IPv4.",
		"1 of 1 fell back to plain TCP, from 1 client address:", "Ports of servers: 443 (all).", "1: MP_FAIL after a wrong checksum", "Of 1 additional subflow, 1 carried no data", "Note: wrong HMACs: 2.",
		"Note: backward steps of the clock, corrected in the times after them: 2.", "Note: a.pcap: it ends within a packet.", "[2019: 125 of 190,451 fell back, from 28 addresses]", "[2019: …] has the findings of Tran's thesis",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
	out.Reset()
	r := record()
	best, second, spread, echo := 0.02, 0.06, 0.04, 0.05
	r.BestRTT, r.SecondRTT, r.RTTSpread, r.MaxFlight, r.Idle = &best, &second, &spread, 120e3, 3
	r.Signals[0].Echo, r.Signals[0].Repeats = &echo, 2
	change := 0.01
	r.Subflows[0].Goodput, r.Subflows[0].RTTChange, r.RetransmissionTimes = 8e6, &change, []float64{0, 0.05, 0.5, 1}
	totals = Totals{}
	totals.Add(r)
	if err := totals.WriteWords(&out, counts); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Goodput over the duration: median 266.8 kbit/s", "Goodput of subflows while they carried data: median 8.0 Mbit/s, 90 % up to 8.0 Mbit/s.",
		"Round trips of 1 subflow: median 15.6 ms, 90 % up to 15.6 ms; while a subflow lasts they change by 10 ms (median), 90 % by up to 10 ms.",
		"Joins: all within a second of the connection's begin, none after more than a minute, none after more than an hour; median 500 ms, of the first of a connection 500 ms.",
		"In the first tenth of their connection's time: 50 % of the retransmissions, none of the reinjections.",
		"Most data in flight: median 120.0 kB", "Idle: pauses of a second and more in all of the connections, 3 s in all.",
		"second-best round trip of these: median 60 ms where the best is below 40 ms.", "none are within 10 ms, none differ",
		"Of 1 connection with unused subflows, none carried less than 1,000 bytes", "ADD_ADDR: 1 and 2 repetitions, 1 echoed after 50 ms (median)",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
	out.Reset()
	if err := (&Totals{}).WriteWords(&out, analyse.Counts{Packets: 3}); err != nil || !strings.Contains(out.String(), "No MPTCP connection was found.") {
		t.Errorf("%v: %s", err, &out)
	}
	out.Reset()
	if err := (&Totals{}).WriteWords(&out, analyse.Counts{}); err != nil || out.String() != "The capture has no packets.\n" {
		t.Errorf("%v: %s", err, &out)
	}
}

// The page is well-formed, and needs nothing from a network.
func TestPage(t *testing.T) {
	var totals Totals
	r := record()
	best, second, spread := 0.02, 0.06, 0.04
	r.BestRTT, r.SecondRTT, r.RTTSpread = &best, &second, &spread
	for range mostListed + 1 {
		totals.Add(r)
		r.Number++
	}
	for name, traced := range map[string]*track.Record{"with a connection": record(), "without": nil} {
		var out bytes.Buffer
		if traced != nil {
			traced.Trace.Dropped = 1234
		}
		if err := WritePage(&out, analyse.Counts{}, &totals, traced); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		if found := regexp.MustCompile(`(?i)(src|href|url\()[=(]?["']?\s*https?:`).FindString(text); found != "" {
			t.Errorf("%s: the page loads %s", name, found)
		}
		for _, chart := range regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1) {
			d := xml.NewDecoder(strings.NewReader(chart))
			for {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: %v in %s", name, err, chart)
				}
			}
			if strings.Contains(chart, "NaN") || strings.Contains(chart, "Inf") {
				t.Errorf("%s: %s", name, chart)
			}
		}
		if !strings.Contains(text, "best below 40 ms: 21 values, median 60 ms") {
			t.Errorf("%s: no round trips of second-best subflows", name)
		}
		if strings.Contains(text, "1,234 more were sent") != (traced != nil) {
			t.Errorf("%s: the page does not note that the plots end early", name)
		}
		if !strings.Contains(text, "Connections with most data") || strings.Count(text, "fell back: MP_FAIL") != mostListed {
			t.Errorf("%s: the page has no list of the %d largest connections", name, mostListed)
		}
		if strings.Count(text, "<svg") < 3 || strings.Contains(text, "Connection 3") != (traced != nil) {
			t.Errorf("%s: %d charts", name, strings.Count(text, "<svg"))
		}
	}
}

// Data is in flight from its first transmission on, by whatever subflow, until it is acknowledged.
func TestFlight(t *testing.T) {
	trace := &track.Trace{
		Segments: []track.Segment{
			{Time: 1, Start: 1000, Length: 100, From: track.Server},
			{Time: 2, Start: 1100, Length: 100, From: track.Server, Subflow: 1},
			{Time: 3, Start: 1, Length: 900, From: track.Client},
			{Time: 5, Start: 1100, Length: 100, From: track.Server, Kind: track.Reinjected},
		},
		Acks: []track.Ack{{Time: 4, Number: 1100, Of: track.Server}, {Time: 6, Number: 1200, Of: track.Server}, {Time: 7, Number: 901, Of: track.Client}},
	}
	got, most := flight(trace, track.Server, func(ns int64) float64 { return float64(ns) })
	want := [][2]float64{{1, 100}, {2, 200}, {4, 100}, {5, 100}, {6, 0}}
	if !slices.Equal(got, want) || most != 200 {
		t.Errorf("%v, at most %v; want %v", got, most, want)
	}
}

// Labels of ticks differ, and are round.
func TestTicks(t *testing.T) {
	for _, length := range []float64{1e-4, 0.003, 0.05, 0.7, 3, 61, 890, 5e5} {
		x := svgchart.LinearAxis(length, "time", timeTick(length))
		seen := map[string]bool{}
		ticks := x.Ticks()
		for _, v := range ticks {
			if text := x.Format(v); seen[text] {
				t.Errorf("%v s: %s twice", length, text)
			} else {
				seen[text] = true
			}
		}
		if len(ticks) < 3 || len(ticks) > 12 || x.To < length {
			t.Errorf("%v s: ticks %v", length, ticks)
		}
	}
	for _, most := range []float64{1e-3, 1, 5e9} {
		if ticks := svgchart.LogAxis(1e-6, most, "", span).Ticks(); len(ticks) < 2 || len(ticks) > 10 {
			t.Errorf("%v: ticks %v", most, ticks)
		}
	}
}
