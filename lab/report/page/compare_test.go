package page

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/report"
)

func TestBehind(t *testing.T) {
	row := func(variant, procedure string, mbps, sentAgain float64) Row {
		return Row{Network: "n", Variant: variant, Procedure: procedure, Congestion: "cubic", N: 3, Median: &mbps, Retransmitted: sentAgain}
	}
	short, tcpShort := row("short", "dcol", 4.9, 0), row("short", "tcp", 5.4, 0)
	short.Latency = &report.Latency{P50MS: 163}
	start, tcpStart := row("credit", "dcol", 9.6, 12), row("credit", "tcp", 9.9, 9)
	steady := 9.6
	start.Steady, tcpStart.Steady = &steady, &steady
	begun, tcpBegun, much := row("begun", "dcol", 9.2, 1200), row("begun", "tcp", 9.5, 800), 10.2
	begun.Steady, tcpBegun.Steady = &much, &steady
	inTunnel := row("tunnel", "dcol-openvpn", 9.65, 9)
	inTunnel.BytesPerPath = map[string]float64{"direct": 6e6, "waypoint": 4e6}
	n := &network{name: "n", rows: []Row{
		row("base", "tcp", 9.65, 9), row("base", "dcol", 9.5, 20), row("base", "dcol-openvpn", 9.2, 60),
		row("lossy", "tcp", 9.6, 9), row("lossy", "dcol", 8.4, 38),
		row("unknown", "tcp", 9.6, 9), row("unknown", "dcol", 9.3, 12), row("unknown", "tcp-detour", 1, 0),
		row("tunnel", "tcp", 10, 9), row("tunnel", "tcp-detour", 10, 9), row("tunnel", "tcp-openvpn", 9.5, 9), inTunnel,
		tcpStart, start, tcpBegun, begun,
		row("no-tcp", "dcol", 1, 0),
		row("queue-1000", "tcp", 9.65, 5), row("queue-1000", "dcol", 9.38, 11),
	}}
	files := &network{name: "n", rows: []Row{tcpShort, short}, variants: []report.Variant{
		{Name: "short", Coordinates: []report.Coordinate{{Axis: "size", Value: 100}}},
		{Name: "long", Coordinates: []report.Coordinate{{Axis: "size", Value: 1000}}},
	}}
	late, tcpLate := row("base", "dcol", 0.5, 0), row("base", "tcp", 1, 0)
	late.Latency, tcpLate.Latency = &report.Latency{P50MS: 17, P99MS: 60}, &report.Latency{P50MS: 17, P99MS: 20}
	stream := &network{name: "stream", rows: []Row{late, tcpLate}, variants: []report.Variant{{Name: "base"}}, procedures: []string{"tcp", "dcol"}, congestions: []string{"cubic"}}
	for _, n := range []*network{n, files} {
		n.procedures = []string{"tcp", "dcol"}
	}
	found := (&book{networks: []*network{n, files, stream}}).behind()
	if len(found.Tables) != 1 {
		t.Fatalf("%+v", found)
	}
	if want := "In 9 of 10 places"; !strings.HasPrefix(found.Text[0], want) {
		t.Errorf("%q, want %q", found.Text[0], want)
	}
	var got []string
	for _, r := range found.Tables[0].Rows {
		got = append(got, r[0].Below[0]+": "+r[0].Below[1]+" "+r[3].Text)
	}
	want := []string{
		"stream, as it is, cubic: the kernel's scheduler gives each path a part",
		"n, lossy, cubic: what one subflow lost is sent again", "n, short, cubic: the kernel's scheduler gives the end", "n, as it is, cubic: what the tunnel adds",
		"n, tunnel, cubic: headers: the tunnel's are 2.0 % of all that is carried, MPTCP's 1.7 % 0.965",
		"n, begun, cubic: what both subflows lose in the first three seconds", "n, unknown, cubic: MPTCP's headers are 1.7 % of it 0.969", "n, credit, cubic: TCP is given 9.90 where it carries 9.60, for what a loss",
		"n, queue-1000, cubic: MPTCP's headers are 1.7 % of it",
	}
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("line %d is %q, want it to begin %q", i, got[i], want[i])
		}
	}
	if ours := found.Tables[0].Rows[0]; ours[1].Text != "60.0 ms" || ours[2].Text != "20.0 ms" || ours[3].Text != "0.333" {
		t.Errorf("of latencies: %+v", ours)
	}

	n.rows = n.rows[:2]
	if found := (&book{networks: []*network{n}}).behind(); len(found.Tables) != 0 || len(found.Text) != 0 {
		t.Errorf("of one that costs nothing: %+v", found)
	}
}
