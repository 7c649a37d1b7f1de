package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/lab/scenario"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	late   = "link 1 from client delivered 1% of packets more than 9.0 ms late"
	failed = "curl on client: exit status 56"
)

// example is a small experiment's result, made up.
func example() *Result {
	r := &Result{
		Schema: Schema, Scenario: "example", Description: "made up, to be looked at",
		Started: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Seconds: 61.5,
		Environment: Environment{
			Kernel: "6.18.0", CPUs: 2, Backend: "wire", Congestion: "cubic", Seed: 1,
			Programs: map[string]string{"curl": "curl 7.88.1", "nginx": "nginx version: nginx/1.22.1"},
		},
		Paths: []string{"direct", "waypoint"},
		Variants: []Variant{
			{Name: "base", Description: "the network as declared"},
			{Name: "lossy", Description: "it loses", Coordinates: []Coordinate{{Axis: "loss", Unit: "%", Value: 1}}},
		},
		Procedures: []Procedure{{Name: "tcp", Description: "plain TCP"}, {Name: "dcol", Description: "two paths"}},
	}
	causes := map[string]Cause{late: CauseLateLink, failed: CauseFailure}
	run := func(variant, procedure string, repetition int, mbps float64, direct, detour int64, discarded string) {
		uses := []PathUse{{Path: "direct", Bytes: direct, Retransmitted: 4}}
		series := Series{StepSeconds: 0.25, Paths: []PathSeries{{Path: "direct", Mbps: []float64{mbps / 2, mbps / 2}}}}
		if detour > 0 {
			uses = append(uses, PathUse{Path: "waypoint", Bytes: detour, Retransmitted: 1})
			series.Paths = append(series.Paths, PathSeries{Path: "waypoint", Mbps: []float64{mbps / 2, mbps / 2}})
		}
		same := true
		r.Runs = append(r.Runs, Run{
			Variant: variant, Procedure: procedure, Congestion: "cubic", Repetition: repetition, Attempt: 1, Discarded: discarded, Cause: causes[discarded],
			GoodputMbps: mbps, Bytes: direct + detour, MeasuredSeconds: 4, CompletionSeconds: 4.2, LongestStallMS: 12.5,
			SHA256OK: &same, Paths: uses, Series: series, CPUShare: 0.05, Log: "logs/" + procedure,
			Links: []LinkUse{{Link: "1", From: "client", To: "server", Packets: 40, Bytes: 2000, LatenessP99MS: 0.1, LatenessMaxMS: 0.4}},
		})
	}
	for i, mbps := range []float64{9.41, 9.52, 9.46} {
		run("base", "tcp", i+1, mbps, 5e6, 0, "")
		run("base", "dcol", i+1, 2*mbps-0.1, 4.6e6, 4.4e6, "")
	}
	run("base", "dcol", 3, 3, 1e6, 0, late)
	run("lossy", "tcp", 1, 5.1, 5e6, 0, "")
	run("lossy", "dcol", 1, 4, 1e6, 1e6, failed)
	r.Summarize([]string{"base", "lossy"}, []string{"tcp", "dcol"}, []string{"cubic"}, []scenario.Expectation{
		{Description: "two paths carry nearly twice as much", That: `median("dcol") >= 1.9 * median("tcp")`, Variants: []string{"base"}},
		{Description: "the detour carries its part", That: `share("dcol", "waypoint") > 0.4 and share("dcol", "direct") > 0.4`, Variants: []string{"base"}},
		{Description: "loss does not matter", That: `median("dcol") > 9`, Variants: []string{"lossy"}},
		{Description: "it is fast", That: `median("tcp") > 9`},
	})
	return r
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestTextGolden(t *testing.T) {
	var b bytes.Buffer
	if err := example().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "example.txt", b.Bytes())
}

func TestJSONGolden(t *testing.T) {
	var b bytes.Buffer
	if err := example().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "example.json", b.Bytes())
	var back Result
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(example(), &back); diff != "" {
		t.Errorf("the JSON loses something (-want +got):\n%s", diff)
	}
}

func TestRowsCountValidRunsOnly(t *testing.T) {
	r := example()
	base, _ := r.Under("cubic").Row("base", "dcol")
	if base.N != 3 || base.Discarded != 1 || base.GoodputMbps.Min < 18 {
		t.Errorf("base dcol: %+v", base)
	}
	if lossy, _ := r.Under("cubic").Row("lossy", "dcol"); lossy.N != 0 || lossy.Discarded != 1 {
		t.Errorf("lossy dcol: %+v", lossy)
	}
	if _, ok := r.Under("cubic").Row("base", "none"); ok {
		t.Error("there is a row of no procedure")
	}
	if r.Met() {
		t.Error("an expectation without runs counts as met")
	}
}

// Every field of the result is explained in docs/lab.md.
func TestSchemaIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/lab.md")
	if err != nil {
		t.Fatal(err)
	}
	var visit func(reflect.Type)
	seen := map[reflect.Type]bool{}
	visit = func(typ reflect.Type) {
		for typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() || seen[typ] {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if !strings.Contains(string(doc), "`"+name+"`") {
				t.Errorf("docs/lab.md does not mention `%s` of %s", name, typ.Name())
			}
			visit(typ.Field(i).Type)
		}
	}
	visit(reflect.TypeFor[SuiteResult]())
}

// dcol's failures stand in the table by procedure, and nothing is met with them.
func TestFailuresCount(t *testing.T) {
	r := example()
	r.Runs = append(r.Runs, Run{
		Variant: "base", Procedure: "dcol", Congestion: "cubic", Repetition: 4, Attempt: 1, Discarded: "agent on client: exit status 2", Cause: CauseProduct,
	})
	r.Summarize([]string{"base"}, []string{"tcp", "dcol"}, []string{"cubic"}, nil)
	tcp, _ := r.Under("cubic").Row("base", "tcp")
	dcol, _ := r.Under("cubic").Row("base", "dcol")
	if tcp.Failed != 0 || dcol.Failed != 1 || dcol.N != 3 || dcol.Discarded != 1 {
		t.Errorf("tcp failed %d times, dcol %d, with %d valid runs and %d discarded", tcp.Failed, dcol.Failed, dcol.N, dcol.Discarded)
	}
	if r.Met() || len(r.Expectations) != 1 {
		t.Errorf("expectations: %+v", r.Expectations)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"failed\n", "NOT MET  dcol does not crash, hang or break what it carries (base)", `failed runs of "dcol" == 0: 1.000 against 0.000`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in:\n%s", want, &text)
		}
	}
	f := FidelityOf(r.Runs)
	if f.Failed != 1 || f.Causes[CauseProduct] != 0 || !strings.Contains(f.String(), "dcol failed: 1") {
		t.Errorf("fidelity %+v", f)
	}
}
