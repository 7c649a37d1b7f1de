package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/trace/present"
	"github.com/detour-collective/dcol/lab/middlebox"
	"github.com/detour-collective/dcol/lab/testbed"
)

// traced is a client and a server with routers between them.
type traced struct {
	t      *testing.T
	n      *testbed.Network
	client *testbed.Host
	server *testbed.Host
}

// tracedPath builds a path. Routers quote everything unless they say otherwise.
func tracedPath(t *testing.T, routers ...testbed.HostSpec) *traced {
	t.Helper()
	t.Parallel()
	if cannot != "" {
		t.Skip(cannot)
	}
	spec := testbed.Spec{Backend: testbed.BackendEmulator, Hosts: []testbed.HostSpec{{Name: "client"}}}
	before := "client"
	for i, r := range routers {
		r.Name, r.Forward = fmt.Sprintf("r%d", i+1), true
		if r.Quotes == "" {
			r.Quotes = middlebox.QuoteAll
		}
		spec.Hosts = append(spec.Hosts, r)
		spec.Links = append(spec.Links, testbed.LinkSpec{Name: fmt.Sprintf("l%d", i+1), A: before, B: r.Name})
		before = r.Name
	}
	spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: "server"})
	spec.Links = append(spec.Links, testbed.LinkSpec{Name: "last", A: before, B: "server"})
	n, err := testbed.Build(t.Context(), spec, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return &traced{t, n, n.Host("client"), n.Host("server")}
}

// run runs dcol trace on the client.
func (w *traced) run(args ...string) (stdout, stderr string, err error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := w.client.Command(ctx, program, append([]string{"trace"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// waiting matches what a command says while it waits.
var waiting = regexp.MustCompile("(?m)^waiting, for .*\n")

// trace returns the JSON of a trace.
func (w *traced) trace(args ...string) (t present.Trace) {
	w.t.Helper()
	out, errs, err := w.run(append([]string{"--json"}, args...)...)
	if err != nil || waiting.ReplaceAllString(errs, "") != "" {
		w.t.Fatalf("dcol trace %v: %v\n%s", args, err, errs)
	}
	if err := json.Unmarshal([]byte(out), &t); err != nil {
		w.t.Fatalf("%v:\n%s", err, out)
	}
	if t.Schema != present.Schema {
		w.t.Errorf("schema %q", t.Schema)
	}
	return t
}

// found lists a trace's findings.
func found(t present.Trace) (all []string) {
	for _, f := range t.Findings {
		all = append(all, fmt.Sprintf("%s %s (%d,%d]", f.Kind, f.Field, f.After, f.By))
	}
	return all
}

// serve has the server's web server listen with MPTCP.
func (w *traced) serve(port int) {
	w.t.Helper()
	cmd := w.server.Command(w.t.Context(), program, "run", "--", "python3", "-m", "http.server", fmt.Sprint(port))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	w.until("the server listens", func() bool {
		out, err := w.server.Command(w.t.Context(), "ss", "-Hltn", fmt.Sprintf("sport = :%d", port)).Output()
		return err == nil && len(out) > 0
	})
}

// until waits for a condition.
func (w *traced) until(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("not within a minute: %s", what)
		}
	}
}

// On the real kernel: boxes in several places are found, one after another and together, over both IP versions.
func TestTrace(t *testing.T) {
	w := tracedPath(t, testbed.HostSpec{Quotes: middlebox.Quote8}, testbed.HostSpec{}, testbed.HostSpec{Quotes: middlebox.QuoteMPLS},
		testbed.HostSpec{Quotes: middlebox.Quote128}, testbed.HostSpec{})
	if got := w.trace("server"); len(got.Findings) > 0 || got.Distance != 6 || !got.Sure || got.Answer == nil {
		t.Errorf("without boxes: %v, distance %d (%v), %v", found(got), got.Distance, got.Sure, got.Notes)
	}
	set := func(host string, m testbed.Middlebox, q middlebox.Quotes, i middlebox.ICMP) {
		t.Helper()
		if err := w.n.SetStation(host, m, q, i); err != nil {
			t.Fatal(err)
		}
	}
	set("r2", testbed.Middlebox(middlebox.PadMPTCP), middlebox.QuoteAll, "")
	if got := w.trace("server"); !slices.Equal(found(got), []string{"removed tcp.option.mpcapable (2,3]"}) {
		t.Errorf("MPTCP's option: %v", found(got))
	}
	if got := w.trace("-6", "server"); !slices.Equal(found(got), []string{"removed tcp.option.mpcapable (2,3]"}) || got.Distance != 6 {
		t.Errorf("MPTCP's option over IPv6: %v, distance %d", found(got), got.Distance)
	}
	set("r4", testbed.Middlebox(middlebox.ClampMSS), middlebox.Quote128, "")
	set("r3", "", middlebox.QuoteAll, middlebox.ICMPSilent)
	want := []string{"removed tcp.option.mpcapable (2,4]", "changed tcp.option.mss (4,5]"}
	if got := w.trace("server"); !slices.Equal(found(got), want) {
		t.Errorf("two boxes and a silent router: %v", found(got))
	}
	if got := w.trace("-p", "IP / udp{dst=9} / raw('hello, who is there?')", "server"); len(got.Findings) > 0 || got.Distance != 6 {
		t.Errorf("UDP: %v, distance %d", found(got), got.Distance)
	}
	if got := w.trace("-p", "IPv6 / udp{dst=9} / raw('hello, who is there?')", "server"); len(got.Findings) > 0 || got.Distance != 6 {
		t.Errorf("UDP over IPv6: %v, distance %d", found(got), got.Distance)
	}
	if got := w.trace("-p", "ICMP", "server"); len(got.Findings) > 0 || got.Distance != 6 {
		t.Errorf("ICMP: %v, distance %d", found(got), got.Distance)
	}
	if got := w.trace("-p", "IPv6 / ICMP", "server"); len(got.Findings) > 0 || got.Distance != 6 {
		t.Errorf("ICMPv6: %v, distance %d", found(got), got.Distance)
	}
	out, errs, err := w.run("server")
	for _, want := range []string{"A    3", "Between hop 2", "MP_CAPABLE (MPTCP) removed (overwritten by padding)", "MSS changed from 1460 to 1380"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("text without %q: %v\n%s%s", want, err, out, errs)
		}
	}
	t.Log("\n" + out)
}

// The rule that holds back the kernel's resets is there during a trace, and gone when the trace was killed.
func TestTraceKilled(t *testing.T) {
	w := tracedPath(t, testbed.HostSpec{ICMP: middlebox.ICMPSilent}, testbed.HostSpec{ICMP: middlebox.ICMPSilent})
	if err := w.n.LinkDown("last", true); err != nil {
		t.Fatal(err)
	}
	tables := func() string {
		out, err := w.client.Command(t.Context(), "nft", "list", "tables").CombinedOutput()
		if err != nil {
			t.Fatalf("nft: %v: %s", err, out)
		}
		return string(out)
	}
	cmd := w.client.Command(t.Context(), program, "trace", "server")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.until("there is a table", func() bool { return strings.Contains(tables(), "dcol_trace_") })
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("it ended by itself before it was killed")
	}
	w.until("the table is gone", func() bool { return !strings.Contains(tables(), "dcol_trace_") })
}

// recipes returns the outcomes of recipes, with their sentences.
func (w *traced) recipes(args ...string) map[string]present.Verdict {
	w.t.Helper()
	out, errs, err := w.run(append([]string{"--json"}, args...)...)
	var r present.Report
	if err == nil {
		err = json.Unmarshal([]byte(out), &r)
	}
	if err != nil || r.Schema != present.ReportSchema {
		w.t.Fatalf("dcol trace %v: %v\n%s%s", args, err, out, errs)
	}
	all := map[string]present.Verdict{}
	for _, v := range r.Verdicts {
		all[v.Recipe] = v
	}
	return all
}

// Recipes on the real kernel, with a server that speaks MPTCP: a connection's data, SACK blocks and all.
func TestTraceRecipes(t *testing.T) {
	w := tracedPath(t, testbed.HostSpec{}, testbed.HostSpec{}, testbed.HostSpec{})
	w.serve(80)
	for name, v := range w.recipes("--all", "server") {
		if v.Outcome != "ok" {
			t.Errorf("without boxes: %s: %s: %s\n%s", name, v.Outcome, v.Text, strings.Join(v.Evidence, "\n"))
		}
	}
	for _, checksums := range []string{"1", "0"} {
		if err := w.server.Sysctl("net.mptcp.checksum_enabled", checksums); err != nil {
			t.Fatal(err)
		}
		v := w.recipes("--recipe", "mptcp", "server")["mptcp"]
		evidence := strings.Join(v.Evidence, "\n")
		for _, want := range []string{"accepts a second subflow of a connection, with MP_JOIN", "bytes of data come with the mapping (DSS) that they should have"} {
			if v.Outcome != "ok" || !strings.Contains(evidence, want) {
				t.Errorf("checksums %s: %s: %s\n%s\nhas no %q", checksums, v.Outcome, v.Text, evidence, want)
			}
		}
	}
	for _, test := range []struct {
		box          middlebox.Kind
		recipe, text string
	}{
		{middlebox.RemoveDataMPTCP, "mptcp", "when data flows"},
		{middlebox.RemoveServerJoin, "mptcp", "comes without MP_JOIN, which is removed on the way back"},
		{middlebox.RemoveServerMaps, "mptcp", "its segments have no DSS, which is removed on the way back"},
		{middlebox.Split, "segments", "Large segments are split"},
		{middlebox.Proxy, "proxy", "answers in the server's place at hop 3"},
		{middlebox.NAT, "nat", "A NAT translates"},
	} {
		if err := w.n.SetStation("r2", testbed.Middlebox(test.box), middlebox.QuoteAll, ""); err != nil {
			t.Fatal(err)
		}
		if v := w.recipes("--recipe", test.recipe, "server")[test.recipe]; v.Outcome != "changed" || !strings.Contains(v.Text, test.text) {
			t.Errorf("%s: %s: %s\n%s", test.box, v.Outcome, v.Text, strings.Join(v.Evidence, "\n"))
		}
	}
	// A box that changes its number, so that the recipe does not look for longer.
	if err := w.n.SetStation("r2", testbed.Middlebox(middlebox.RandomiseSeqOnly), middlebox.QuoteAll, ""); err != nil {
		t.Fatal(err)
	}
	changed := make(chan error, 1)
	time.AfterFunc(4*time.Second, func() { changed <- w.n.SetStation("r2", "move-seq-only=99", middlebox.QuoteAll, "") })
	v := w.recipes("--recipe", "sequence", "server")["sequence"]
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	if v.Outcome != "changed" || !strings.Contains(v.Text, "not those in SACK blocks") {
		t.Errorf("sequence: %s: %s\n%s", v.Outcome, v.Text, strings.Join(v.Evidence, "\n"))
	}
	// The doctor names the hops, too. Its other checks may fail here.
	if err := w.n.SetStation("r2", testbed.Middlebox(middlebox.PadMPTCP), middlebox.QuoteAll, ""); err != nil {
		t.Fatal(err)
	}
	out, _ := w.client.Command(t.Context(), program, "doctor", "--path", "server", "--port", "80").Output()
	if want := "MP_CAPABLE (MPTCP) removed (overwritten by padding) between hop 2 (10.0.2.2) and hop 3 (10.0.3.2)"; !strings.Contains(strings.Join(strings.Fields(string(out)), " "), want) { // in whatever lines
		t.Errorf("dcol doctor without %q:\n%s", want, out)
	}
}

// The thesis's script of figure 3.16 on the real kernel.
func TestTraceScript(t *testing.T) {
	w := tracedPath(t, testbed.HostSpec{}, testbed.HostSpec{Middlebox: testbed.Middlebox(middlebox.FTPGateway)}, testbed.HostSpec{})
	w.serve(21)
	code, err := os.ReadFile("../../internal/trace/script/testdata/nat-ftp.lua")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.client.WriteFile("/run/nat-ftp.lua", code, 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, err := w.run("-s", "/run/nat-ftp.lua", "server")
	if err != nil || out != "There is a NAT before 10.0.3.2\n" {
		t.Errorf("printed %q, %s, %v", out, errs, err)
	}
}
