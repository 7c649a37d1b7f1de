package report

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/lab/scenario"
)

// The same experiment with two congestion controls: nothing of one is counted with
// the other, and what is expected is decided for each.
func TestCongestionControlsApart(t *testing.T) {
	r := example()
	for _, run := range r.Runs {
		run.Congestion = "reno"
		run.GoodputMbps /= 2
		r.Runs = append(r.Runs, run)
	}
	r.Summarize([]string{"base"}, []string{"tcp", "dcol"}, []string{"cubic", "reno"}, []scenario.Expectation{
		{Description: "it is fast", That: `median("tcp") > 9`},
	})
	cubic, _ := r.Under("cubic").Row("base", "tcp")
	reno, _ := r.Under("reno").Row("base", "tcp")
	if cubic.N != 3 || reno.N != 3 || cubic.GoodputMbps.Median != 9.46 || reno.GoodputMbps.Median != 9.46/2 {
		t.Errorf("cubic %+v, reno %+v", cubic, reno)
	}
	if _, ok := r.Under("bbr").Row("base", "tcp"); ok {
		t.Error("there is a row of a congestion control that was not asked for")
	}
	var met []string
	for _, e := range r.Expectations {
		if e.Met {
			met = append(met, e.Congestion)
		}
	}
	if diff := cmp.Diff([]string{"cubic"}, met); diff != "" || len(r.Expectations) != 2 {
		t.Errorf("%d expectations; met (-want +got):\n%s", len(r.Expectations), diff)
	}
}

func exampleSuite() *SuiteResult {
	r := example()
	for i := range r.Runs {
		r.Runs[i].CPUShare = 0.1 * float64(i+1)
		r.Runs[i].ReferenceP99MS = 0.5
		r.Runs[i].Networks = 2
	}
	return &SuiteResult{
		Schema: SuiteSchema, Name: "suite", Description: "made up", Started: r.Started, Seconds: r.Seconds,
		Environment: r.Environment, Fidelity: FidelityOf(r.Runs), Parts: []*Result{r},
	}
}

func TestSuiteRoundTrip(t *testing.T) {
	var b bytes.Buffer
	if err := exampleSuite().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var back SuiteResult
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(exampleSuite(), &back); diff != "" {
		t.Errorf("the JSON loses something (-want +got):\n%s", diff)
	}
	if back.Met() {
		t.Error("a suite with an expectation that is not met counts as met")
	}
}

func TestFidelity(t *testing.T) {
	want := Fidelity{
		Runs: 7, Discarded: 2, Causes: map[Cause]int{CauseLateLink: 1, CauseFailure: 1},
		CPUShare:  Spread{Median: 0.4, Max: 0.8},
		LinkP99MS: Spread{0.1, 0.1}, ReferenceP99MS: Spread{0.5, 0.5}, Networks: 2,
	}
	if diff := cmp.Diff(want, exampleSuite().Fidelity); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	none := FidelityOf(nil)
	if none.Runs != 0 || none.Networks != 0 || none.String() != "no run counts\n" {
		t.Errorf("of no runs: %+v, %q", none, none)
	}
}
