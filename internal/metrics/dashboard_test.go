package metrics

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const dashboardFile = "../../packaging/grafana/dcol.json"

type dashboard struct {
	Editable   bool
	Templating struct {
		List []variable
	}
	Panels []struct {
		Type, Title, Description string
		Datasource               struct{ UID string }
		FieldConfig              struct{ Defaults struct{ Unit string } }
		Targets                  []struct{ Expr string }
	}
}

type variable struct {
	Name, Type, Query, Label, AllValue string
	Multi                              bool
	Refresh                            int
	Datasource                         struct{ UID string }
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	data, err := os.ReadFile(dashboardFile)
	if err == nil {
		err = json.Unmarshal(data, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// onTimeChange is the Refresh of a variable whose values are read again when the time range changes.
const onTimeChange = 2

// The dashboard follows the rules of Grafana's dashboard-linter. The data source, job and instance can be chosen.
// Panels have titles, descriptions and units. Queries select by job and instance, with the interval that Grafana
// computes. TestPrometheus runs the queries.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if d.Editable {
		t.Error("it is editable, so that an update of the file would end what users changed")
	}
	for name, label := range map[string]string{"datasource": "Data source", "job": "Job", "instance": "Instance"} {
		i := slices.IndexFunc(d.Templating.List, func(v variable) bool { return v.Name == name })
		if i < 0 {
			t.Errorf("there is no variable %s", name)
			continue
		}
		switch v := d.Templating.List[i]; {
		case v.Label != label:
			t.Errorf("the variable %s has the label %q, not %q", name, v.Label, label)
		case name == "datasource" && (v.Type != "datasource" || v.Query != "prometheus"):
			t.Errorf("the variable %s is a %s of %s", name, v.Type, v.Query)
		case name != "datasource" && (v.Type != "query" || v.Datasource.UID != "${datasource}"):
			t.Errorf("the variable %s is a %s of the data source %s", name, v.Type, v.Datasource.UID)
		case name != "datasource" && (!v.Multi || v.AllValue != ".+" || v.Refresh != onTimeChange || !strings.HasPrefix(v.Query, "label_values(dcol_")):
			t.Errorf("the variable %s does not take several values, read again with each time range: %+v", name, v)
		}
	}
	if len(d.Panels) < 10 {
		t.Errorf("there are only %d panels", len(d.Panels))
	}
	interval := regexp.MustCompile(`\[([^\]]*)\]`)
	counter := regexp.MustCompile(`(\w+_total)\{`)
	for _, p := range d.Panels {
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("panel %q lacks its title, description, unit, data source or query: %+v", p.Title, p)
		}
		for _, q := range p.Targets {
			selectors := strings.Count(q.Expr, "{")
			if n := strings.Count(q.Expr, `{job=~"$job", instance=~"$instance"`); n != selectors || n == 0 {
				t.Errorf("panel %q selects by job and instance in %d of %d places: %s", p.Title, n, selectors, q.Expr)
			}
			for _, m := range interval.FindAllStringSubmatch(q.Expr, -1) {
				if m[1] != "$__rate_interval" {
					t.Errorf("panel %q uses the interval %s: %s", p.Title, m[1], q.Expr)
				}
			}
			for _, m := range counter.FindAllStringSubmatch(q.Expr, -1) {
				if !strings.Contains(q.Expr, "rate("+m[1]) && !strings.Contains(q.Expr, "increase("+m[1]) {
					t.Errorf("panel %q shows the counter %s without a rate: %s", p.Title, m[1], q.Expr)
				}
			}
		}
	}
}

// Grafana's own linter finds nothing, where it is installed.
func TestDashboardLinter(t *testing.T) {
	linter, err := exec.LookPath("dashboard-linter")
	if err != nil {
		t.Skip("needs dashboard-linter: go install github.com/grafana/dashboard-linter@latest")
	}
	if out, err := exec.CommandContext(t.Context(), linter, "lint", "--strict", dashboardFile).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
