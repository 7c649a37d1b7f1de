package chain

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/packet"
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

// The SYN+ACK is compared, too. What was removed on the way there is told once.
func TestAnswerIsCompared(t *testing.T) {
	for name, test := range map[string]struct {
		box    middlebox.Kind
		server Server
		want   []string
		reply  present.Reply
	}{
		"it answers everything": {middlebox.None, Linux(options[0], options[1], options[2], options[4], packet.Capable{Version: 1, Keys: 1, Sender: 5}.Option()), nil,
			present.Reply{Unanswered: []string{}, Unasked: []string{}, SentMSS: 1460, MSS: 1460}},
		"plain TCP": {middlebox.None, Linux(options[:3]...), []string{"the SYN+ACK does not answer window scale and MP_CAPABLE (MPTCP):"},
			present.Reply{Unanswered: []string{"tcp.option.wscale", "tcp.option.mpcapable"}, Unasked: []string{}, SentMSS: 1460, MSS: 1460}},
		"a firewall": {middlebox.PadMPTCP, Linux(options[:5]...), nil,
			present.Reply{Unanswered: []string{"tcp.option.mpcapable"}, Unasked: []string{}, SentMSS: 1460, MSS: 1460}},
		"an echo": {middlebox.EchoOptions, Linux(options[:5]...), []string{"the SYN+ACK has MP_CAPABLE without a key:"},
			present.Reply{Unanswered: []string{}, Unasked: []string{}, SentMSS: 1460, MSS: 1460, Echoed: true}},
		"a tunnel": {middlebox.None, Linux(packet.MSS(1380), options[1], options[2], options[4], packet.Capable{Version: 1, Keys: 1, Sender: 5}.Option()),
			[]string{"the SYN+ACK's MSS is 1380, less than the 1460 of Ethernet:"},
			present.Reply{Unanswered: []string{}, Unasked: []string{}, SentMSS: 1460, MSS: 1380}},
	} {
		hops := make([]Hop, 5)
		hops[2].Box = test.box
		p := synProbe(t)
		path := run(t, func() *Chain { return New(hops, time.Millisecond, test.server) }, p, trace.Options{})
		got := present.JSON("", path, p)
		if diff := cmp.Diff(&test.reply, got.Answer.Reply); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		fits := len(got.Notes) == len(test.want)
		for i := range test.want {
			fits = fits && strings.HasPrefix(got.Notes[i], test.want[i])
		}
		if !fits {
			t.Errorf("%s: notes %q, want %q", name, got.Notes, test.want)
		}
	}
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
