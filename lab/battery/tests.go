package battery

import (
	"context"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/probe"
	"github.com/detour-collective/dcol/lab/testbed"
)

// test is one question to implementations.
type test struct {
	name      string // of its scenario and its folder
	number    string // the publication, and its number there
	title     string
	question  string
	published string
	cases     []variant
	impls     []implementation
	measure   func(context.Context, *attempt) (values, error)
	runs      int // with --full, where the publication has another number than fullRepetitions
	// shown are the values of the page's table, and what they are.
	shown []column
}

// variant is one network or setting of a test.
type variant struct {
	name  string
	about string
	shape shape
	// What the test's function reads of the case.
	congestion string
	others     int // TCP flows beside
	mode       string
	voice      probe.Shape
	window     int // bytes
	mss        int
	// of names the case of the test of throughput whose runs answer this question, too.
	of string
	// published has what the publication has of the values that are shown, in their units.
	published map[string]string
}

// published returns values by their names, from pairs of both.
func published(pairs ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

// column is a value of the page's table.
type column struct{ key, title, unit string }

// values are the measurements of a run, by name.
type values map[string]float64

// lengths has the durations of tests: as published with --full, shorter otherwise.
type lengths struct {
	transfer, rescue, handover, fairness time.Duration
	rounds                               int // of a voice assistant
	full                                 bool
}

// early is the part of a transfer whose round trips are shown apart: the first 10 s, as published, or the first third.
func (l lengths) early() time.Duration { return min(10*time.Second, l.transfer/3) }

// wifiOff is when WiFi goes: at 5 s, as published, or in the middle.
func (l lengths) wifiOff() time.Duration { return min(5*time.Second, l.handover/2) }

func lengthsOf(full bool) lengths {
	if full {
		return lengths{60 * time.Second, 60 * time.Second, 20 * time.Second, 60 * time.Second, 50, true}
	}
	return lengths{8 * time.Second, 12 * time.Second, 10 * time.Second, 10 * time.Second, 12, false}
}

// ms is a round trip.
const ms = time.Millisecond

// The lines of the publication: TCP's throughput and round trips on each path. Test 4's second line has its minimum above
// its maximum there; the mean is taken.
var (
	table1 = shape{n: 2, m: 2, lines: []line{even(51.88, 10*ms), even(10.11, 20*ms), even(0.79, 60*ms), even(0.50, 60*ms)}}
	table2 = shape{n: 2, m: 2, lines: []line{even(9.28, 39830*time.Microsecond), even(8.16, 44870*time.Microsecond), even(9.13, 39670*time.Microsecond), even(8.13, 45820*time.Microsecond)}}
	table3 = shape{n: 3, m: 2, lines: []line{even(52.88, 6470*time.Microsecond), even(53.12, 7150*time.Microsecond),
		even(6.53, 19960*time.Microsecond), even(6.53, 18410*time.Microsecond), even(0.30, 147800*time.Microsecond), even(0.39, 119840*time.Microsecond)}}
	table4 = shape{n: 2, m: 2, lines: []line{even(4.64, 79530*time.Microsecond), even(3.32, 244960*time.Microsecond), even(4.82, 73310*time.Microsecond), even(3.31, 286950*time.Microsecond)}}
	// The shared bottleneck of our own, for tests 5 to 8: the publication could not isolate one.
	shared = shape{n: 2, m: 1, bottleneck: &line{up: 20, down: 20, rtt: 20 * ms}}
	// WiFi and a mobile network as in Detal's thesis, 2.3: the rates to and from the client.
	// radio is the same with a mobile radio that needs 2 s to wake up, and sleeps 5 s after the last packet (2.2.1).
	radio  = shape{n: 2, m: 1, uplinks: true, lines: []line{mobile.lines[0], {up: 1, down: 2, rtt: 60 * ms, radio: mobileRadio}}}
	mobile = shape{n: 2, m: 1, uplinks: true, lines: []line{{up: 0.45, down: 8, rtt: 30 * ms}, {up: 1, down: 2, rtt: 60 * ms}}}
)

var mobileRadio = testbed.Radio{Wake: 2 * time.Second, Sleep: 5 * time.Second, Power: 800, Low: 400}

var (
	all       = []implementation{plainTCP, kernelPM, mptcpd, dcol}
	multipath = []implementation{kernelPM, mptcpd, dcol}
)

// Columns that several tests have.
var (
	goodputColumn = column{"goodput", "goodput", "Mbit/s"}
	ofBest        = column{"of_best", "of the best path", "×"}
	ofSum         = column{"of_sum", "of the sum", "×"}
)

// tests returns all, in the order of the page.
func tests() []test {
	throughput := []column{goodputColumn, {"best", "TCP on the best path", "Mbit/s"}, {"sum", "TCP on all, together", "Mbit/s"}, ofBest, ofSum, {"subflows", "subflows", ""}}
	latency := []column{{"rtt_first", "RTT at first", "ms"}, {"rtt_after", "RTT after", "ms"}}
	change := []column{{"rtt_before", "RTT before", "ms"}, {"rtt_after", "RTT after", "ms"}, {"goodput_before", "goodput before", "Mbit/s"}, {"goodput_after", "goodput after", "Mbit/s"}}
	fairness := []column{{"ratio", "MPTCP against each TCP", "×"}, {"mptcp", "MPTCP", "Mbit/s"}, {"tcp", "each TCP", "Mbit/s"}}
	messages := []column{{"delay_p50", "median delay of messages", "ms"}, {"delay_max", "longest", "ms"}}
	handover := []column{{"join_ms", "join after (0: before)", "ms"}, {"data_ms", "data after", "ms"}, {"lost", "bytes lost", ""}, {"goodput_after", "goodput after", "Mbit/s"}}
	return []test{
		{name: "subflows", number: "NorNet, test 1", title: "Subflows", question: "Does fullmesh between n and m uplinks open n × m subflows, and what does each carry?",
			published: "4 subflows between 2 and 2 uplinks; 51.88, 10.11, 0.79 and 0.50 Mbit/s",
			cases:     []variant{{name: "2x2", about: "the lines of table 6.1", shape: table1, published: published("subflows", "4")}, {name: "3x2", about: "the lines of table 6.3", shape: table3, of: "test-3"}},
			impls:     multipath, measure: transfer, shown: []column{{"subflows", "subflows", ""}, goodputColumn, {"path1", "path 1", "Mbit/s"}, {"path2", "path 2", "Mbit/s"}, {"path3", "path 3", "Mbit/s"}, {"path4", "path 4", "Mbit/s"}}},
		{name: "throughput", number: "NorNet, tests 2 to 4", title: "Throughput", question: "What does MPTCP carry against TCP on each path: the best one, and all together?",
			published: "test 2: 4.46 × the best and 1.19 × the sum, which no network of separate lines allows; test 3: 2.13 and 0.94; test 4: 1.84 and 0.55",
			cases: []variant{{name: "test-2", about: "four lines of 8 to 9 Mbit/s at 40 to 46 ms", shape: table2, published: published("of_best", "4.46", "of_sum", "1.19")}, {name: "test-3", about: "53 Mbit/s at 7 ms, 6.5 at 19, 0.35 at 120 to 148", shape: table3, published: published("of_best", "2.13", "of_sum", "0.94")},
				{name: "test-4", about: "3.3 to 4.8 Mbit/s, skewed: 73 to 80 and 245 to 287 ms", shape: table4, published: published("of_best", "1.84", "of_sum", "0.55")}},
			impls: all, measure: transfer, shown: throughput},
		{name: "fairness", number: "NorNet, tests 5 to 8", title: "Fairness", question: "On one bottleneck, does MPTCP with two subflows take more than each of one or three TCP flows by Reno?",
			published: "no: a TCP flow gets about what it gets without MPTCP beside it (with LIA); their networks had no bottleneck that could be isolated, this one of 20 Mbit/s is ours",
			cases: []variant{{name: "1-tcp-lia", about: "LIA beside one TCP", shape: shared, congestion: "lia", others: 1}, {name: "3-tcp-lia", about: "LIA beside three TCP", shape: shared, congestion: "lia", others: 3},
				{name: "1-tcp-reno", about: "Reno in each subflow beside one TCP", shape: shared, congestion: "reno", others: 1}, {name: "3-tcp-reno", about: "Reno in each subflow beside three TCP", shape: shared, congestion: "reno", others: 3}},
			impls: multipath, measure: beside, shown: fairness},
		{name: "latency", number: "NorNet, tests 9 and 10", title: "Round trips", question: "How long are the round trips that data sees, in the first 10 s and after? (In the first third of shortened runs.)",
			published: "test 9: 9 to 10.5 ms over TCP, a little more over MPTCP with outliers in the first 10 s; test 10: about 40 ms, outliers above 200 ms",
			cases:     []variant{{name: "test-9", about: "a fast path and slow lines", shape: table3, of: "test-3", published: published("rtt_first", "9–10.5 by TCP", "rtt_after", "9–10.5 by TCP")}, {name: "test-10", about: "four similar paths", shape: table2, of: "test-2", published: published("rtt_first", "about 40", "rtt_after", "about 40")}},
			impls:     all, measure: transfer, shown: latency},
		{name: "rescue", number: "NorNet, tests 11 and 12", title: "A connection that began on a bad path, and on the best one", question: "What becomes of the round trip when the other paths are added in the middle?",
			published: "test 11: from 160 to about 20 ms at 30 s; test 12: from 5.5–7 to 5.5–10 ms",
			cases:     []variant{{name: "test-11", about: "begins on 0.3 Mbit/s at 148 ms", shape: rescueShape, mode: "bad", published: published("rtt_before", "160", "rtt_after", "about 20")}, {name: "test-12", about: "begins on 53 Mbit/s at 6.5 ms", shape: table3, mode: "best", published: published("rtt_before", "5.5–7", "rtt_after", "5.5–10")}},
			impls:     multipath, measure: rescued, shown: change},
		{name: "handover", number: "NorNet, test 13", title: "Handover to a backup", question: "The first path dies in the middle of a transfer. How long until the backup carries data, and is anything lost?",
			published: "a join after 1.73 s, data after 3.44 s, the transfer not interrupted",
			cases:     []variant{{name: "path-dies", about: "its packets are dropped", shape: wifi}, {name: "interface-down", about: "the interface is taken down, as published", shape: wifi, mode: "interface", published: published("join_ms", "1730", "data_ms", "3440", "lost", "0")}},
			impls:     multipath, measure: handedOver, shown: handover},
		{name: "congestion", number: "NorNet, test 14", title: "Congestion controls", question: "What does each congestion control carry?",
			published: "wVegas least; LIA, OLIA and BALIA alike",
			cases:     congestionCases(), impls: []implementation{kernelPM, dcol}, measure: transfer, shown: []column{goodputColumn, ofSumOfLines}},
		{name: "schedulers", number: "NorNet, test 15", title: "Schedulers", question: "Which schedulers are there, and what does each carry?",
			published: "round robin clearly less than lowest RTT",
			cases:     []variant{{name: "default", about: "the only one of mainline Linux", shape: table3, of: "test-3"}},
			impls:     []implementation{kernelPM}, measure: transfer, shown: []column{{"schedulers", "schedulers", ""}, goodputColumn}},
		{name: "handover-modes", number: "Detal 2014, 2.3", title: "Handover from WiFi to a mobile network", question: "WiFi goes at 5 s of a download. How long until data comes again, by mode and by an application that resumes?",
			published: "all modes reach the mobile network's rate within 3 s; single-path mode needs two round trips more",
			cases: []variant{{name: "full", about: "both paths in use", shape: mobile, mode: "full", published: published("data_ms", "up to 3000")}, {name: "backup", about: "the mobile path stands by", shape: mobile, mode: "backup", published: published("data_ms", "up to 3000")},
				{name: "single-path", about: "the mobile path is joined when WiFi has gone", shape: mobile, mode: "single", published: published("data_ms", "up to 3000")}, {name: "stream", about: "500 kbit/s in messages of 1250 bytes, both paths in use", shape: mobile, mode: "stream"},
				{name: "stream-single", about: "the same stream, the mobile path is joined when WiFi has gone", shape: mobile, mode: "stream-single"},
				{name: "application", about: "TCP, and an application that asks for the rest by a range of HTTP over the mobile network, at once when WiFi goes", shape: mobile, mode: "application"}},
			impls: all, measure: modes, runs: 20, shown: append(slices.Clip(handover), messages...)},
		{name: "handover-radio", number: "Detal 2014, 2.2 and 2.3", title: "Handover to a mobile radio that sleeps", question: "WiFi goes in the middle. The mobile radio needs 2 s to wake up, sleeps after 5 s without packets, and uses 800 mW, then 400 mW for 5 s. How long until data comes again, and what does the radio use?",
			published: "backup mode wakes the radio when the connection begins, and reacts quicker as long as it is awake; single-path mode always waits for it. All modes reach the mobile network's rate within 3 s (2.3). Backup for what the user sees, single-path for the rest",
			cases: []variant{{name: "full", about: "a download, both paths in use", shape: radio, mode: "full", published: published("data_ms", "up to 3000")}, {name: "backup", about: "a download, the mobile path stands by", shape: radio, mode: "backup", published: published("data_ms", "up to 3000")},
				{name: "single-path", about: "a download, the mobile path is joined when WiFi has gone", shape: radio, mode: "single", published: published("data_ms", "up to 3000")},
				{name: "active", about: "a download; the mobile path stands by once a connection has carried 500 kB", shape: radio, mode: "activity"},
				{name: "background", about: "20 kbit/s; the mobile path stands by once a connection has carried 500 kB", shape: radio, mode: "background"}},
			impls: []implementation{kernelPM, dcol}, measure: asleep,
			shown: []column{{"join_ms", "join after (0: before)", "ms"}, {"data_ms", "data after", "ms"}, {"goodput_after", "goodput after", "Mbit/s"}, {"joules_before", "radio until WiFi goes", "J"}, {"joules", "radio in all", "J"}}},
		{name: "signalling", number: "Detal 2014, 2.4", title: "Addresses under loss", question: "Of connections whose first path loses packets, how many learn of the server's second address, and of its end?",
			published: "REMOVE_ADDR is unreliable; an echo would make it reliable",
			cases:     []variant{{name: "loss-0", about: "no loss", shape: lossy(0)}, {name: "loss-20", about: "20 % towards the client", shape: lossy(0.2)}, {name: "loss-40", about: "40 % towards the client", shape: lossy(0.4)}},
			impls:     multipath, measure: signalled,
			shown: []column{{"joined", "joined within 3 s", "%"}, {"left", "left within 3 s", "%"}, {"announced", "ADD_ADDR sent for each", "×"}, {"removals", "REMOVE_ADDR sent for each", "×"}}},
		{name: "withdrawal", number: "Detal 2014, 2.4", title: "A lost address, under loss", question: "The client loses its second address, and its packets on the first path are lost now and then. Of how many connections does the server learn that the address is gone?",
			published: "REMOVE_ADDR is unreliable; an echo would make it reliable",
			cases:     []variant{{name: "loss-0", about: "no loss", shape: losing(0)}, {name: "loss-20", about: "20 % towards the server", shape: losing(0.2)}, {name: "loss-40", about: "40 % towards the server", shape: losing(0.4)}},
			impls:     []implementation{kernelPM, dcol}, measure: withdrawn,
			shown: []column{{"joined", "joined within 3 s", "%"}, {"left", "left within 3 s", "%"}, {"removals", "REMOVE_ADDR sent for each", "×"}}},
		{name: "answers", number: "Tran 2019, 4.5", title: "Answers to a voice assistant", question: "The client's first path fails for 0.8 to 2.5 s now and then. How long does it wait for the reply, with and without intermediate replies, if the server answers as the kernel schedules, or where its client was heard last, or if the client withdraws the address?",
			published: "no difference up to the 70th percentile; above, answering where the client was heard last is better for mobile clients, and without intermediate replies delays grow much",
			cases:     answerCases(), impls: []implementation{kernelPM}, measure: answers,
			shown: []column{{"p50", "median", "ms"}, {"p75", "p75", "ms"}, {"p90", "p90", "ms"}, {"max", "max", "ms"}, {"direct", "replies on the first path", "%"}, {"plain", "plain TCP", "%"}, {"failed", "failed", ""}}},
		{name: "window", number: "NorNet, test 4", title: "Receive window and MSS", question: "Which receive window do skewed round trips need, and what do small segments cost?",
			published: "MPTCP may need larger receive buffers when subflows have different delays",
			cases:     sweepCases(), impls: []implementation{kernelPM}, measure: transfer, shown: []column{goodputColumn, ofSumOfLines}},
	}
}

// ofSumOfLines is the goodput over the sum of the lines' rates.
var ofSumOfLines = column{"of_lines", "of the lines' rates", "×"}

var (
	// wifi is the laptop of test 13: the second path is slower and stands by.
	wifi = shape{n: 2, m: 1, lines: []line{even(20, 20*ms), even(10, 50*ms)}, uplinks: true}
	// rescueShape has the bad line first, because a connection begins on the first uplink.
	rescueShape = shape{n: 3, m: 2, lines: []line{table3.lines[4], table3.lines[5], table3.lines[2], table3.lines[3], table3.lines[0], table3.lines[1]}}
)

// lossy has a first path that loses packets to the client, which carry the server's signals.
func lossy(loss float64) shape {
	return shape{n: 1, m: 2, announces: true, lines: []line{{up: 10, down: 10, rtt: 20 * ms, loss: loss}, even(10, 20*ms)}}
}

// losing has a first path that loses packets to the server, which carry the client's signals.
func losing(loss float64) shape {
	return shape{n: 2, m: 1, lines: []line{{up: 10, down: 10, rtt: 20 * ms, lossUp: loss}, even(10, 20*ms)}, uplinks: true}
}

func answerCases() (cases []variant) {
	for _, voice := range []struct {
		shape probe.Shape
		about string
	}{{probe.Voice, "with intermediate replies"}, {probe.VoiceQuiet, "without intermediate replies"}} {
		for _, mode := range []struct{ name, about string }{
			{"default", "the kernel's scheduler"}, {"latest", "where the client was heard last, by backup flags"}, {"withdraw", "the client withdraws the address (REMOVE_ADDR)"},
		} {
			cases = append(cases, variant{name: string(voice.shape) + "-" + mode.name, about: voice.about + ", " + mode.about, shape: mobile, mode: mode.name, voice: voice.shape})
		}
	}
	return cases
}

func congestionCases() (cases []variant) {
	two := shape{n: 2, m: 1, lines: []line{even(20, 10*ms), even(6.5, 25*ms)}}
	for _, name := range []string{"lia", "olia", "balia", "wvegas", "reno", "cubic", "bbr"} {
		cases = append(cases, variant{name: name, about: name + ", 20 Mbit/s at 10 ms and 6.5 at 25", shape: two, congestion: name})
	}
	return cases
}

func sweepCases() (cases []variant) {
	for _, window := range []struct {
		name  string
		bytes int
	}{{"64k", 64 << 10}, {"256k", 256 << 10}, {"1m", 1 << 20}, {"6m", 6 << 20}} {
		cases = append(cases, variant{name: "window-" + window.name, about: "a receive buffer of at most " + window.name + "B, the lines of test 4", shape: table4, window: window.bytes})
	}
	for _, mss := range []string{"536", "1200", "1448"} {
		n := map[string]int{"536": 536, "1200": 1200, "1448": 1448}[mss]
		cases = append(cases, variant{name: "mss-" + mss, about: "segments of " + mss + " bytes, the lines of test 2", shape: table2, mss: n})
	}
	return cases
}
