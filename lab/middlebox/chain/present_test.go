package chain

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/examine"
	"github.com/detour-collective/dcol/internal/trace/present"
	"github.com/detour-collective/dcol/internal/trace/recipe"
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

	text.Reset()
	if err := examined(t, hops, "mptcp", "proxy", "sequence", "mss").Text(&text); err != nil {
		t.Fatal(err)
	}
	golden(t, "recipes.txt", text.String())
	for line := range strings.Lines(text.String()) {
		if len(line) > 81 { // with its end
			t.Errorf("a line has more than 80 columns: %s", line)
		}
	}
}

// examined runs several recipes in virtual time.
func examined(t *testing.T, hops []Hop, names ...string) (report present.Report) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net := New(hops, time.Millisecond, Multipath(80, 21))
		defer net.Close()
		s := &recipe.Session{
			Net: net, Source: alice.Addr(), Destination: bob.Addr(), Port: 80, Random: seeded(),
			Hold: func(uint16, uint16) error { return nil },
		}
		var err error
		if report, err = examine.Run(t.Context(), s, "server.example", names, func(recipe.Recipe) {}); err != nil {
			t.Fatal(err)
		}
	})
	return report
}

// Changes that several recipes find are drawn on one path, and together they fit a known box.
func TestRecipesDrawThePath(t *testing.T) {
	hops := make([]Hop, 7)
	hops[1].Box, hops[2].Box, hops[3].Box = middlebox.RandomiseSeq, middlebox.PadMPTCP, middlebox.ClampMSS
	for i := range hops {
		if i != 0 && i != 5 {
			hops[i].Quotes = middlebox.Quote8
		}
	}
	report := examined(t, hops, "mptcp", "sequence", "mss")
	if report.Trace == nil || len(report.Trace.Findings) != 3 {
		t.Fatalf("the path is %+v", report.Trace)
	}
	var text strings.Builder
	if err := report.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"MP_CAPABLE (MPTCP) removed (overwritten by padding)\n", "     MSS changed from 1460 to 1380\n", "     sequence number moved by ",
		"Between hop 1 (192.0.2.1) and hop 6 (192.0.2.6):\n", "Between hop 2 (192.0.2.2) and hop 3 (192.0.2.3):\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in:\n%s", want, text.String())
		}
	}
	if known := "are those of a Cisco ASA with default settings"; !strings.Contains(strings.Join(report.Trace.Notes, "\n"), known) {
		t.Errorf("no %q in %q", known, report.Trace.Notes)
	}
	if one := examined(t, hops, "mss"); one.Trace != nil {
		t.Error("one recipe draws the path")
	}
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
