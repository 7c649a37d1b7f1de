package chain

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/present"
	"github.com/detour-collective/dcol/lab/middlebox"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// What users see of a path with several boxes, silent and odd routers is in testdata; -update writes it.
func TestOutput(t *testing.T) {
	hops := []Hop{
		{Quotes: middlebox.Quote8}, {}, {Quotes: middlebox.QuoteMPLS, Box: middlebox.PadMPTCP}, {ICMP: middlebox.ICMPSilent},
		{Quotes: middlebox.Quote8}, {Box: middlebox.ClampMSS}, {ICMP: middlebox.ICMPOther}, {Box: middlebox.RandomiseSeq}, {Quotes: middlebox.Quote8},
	}
	p := synProbe(t)
	path := run(t, func() *Chain { return New(hops, time.Millisecond, Linux(options[0])) }, p, trace.Options{})
	var text strings.Builder
	if err := present.Text(&text, "server.example", path, p); err != nil {
		t.Fatal(err)
	}
	golden(t, "trace.txt", text.String())
	b, err := json.MarshalIndent(present.JSON("server.example", path, p), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "trace.json", string(b)+"\n")

	report := present.Report{Schema: present.ReportSchema, Name: "server.example", Destination: bob.Addr().String(), Port: 80}
	for _, name := range []string{"mptcp", "proxy"} {
		v := cook(t, name, hops, Multipath(80, 21), false)
		report.Verdicts = append(report.Verdicts, present.Verdict{
			Recipe: v.Recipe, Question: "?", Outcome: string(v.Outcome), Confidence: string(v.Confidence), Text: v.Text, Evidence: v.Evidence,
		})
	}
	text.Reset()
	if err := report.Text(&text); err != nil {
		t.Fatal(err)
	}
	golden(t, "recipes.txt", text.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile("testdata/"+name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}
