package metrics

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// program returns the path of one of Prometheus' programs.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("this machine has no %s: make test-metrics installs it", name)
	}
	return path
}

func TestPromtool(t *testing.T) {
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "../../packaging/prometheus/dcol.rules.yml"}, {"test", "rules", "testdata/alerts.yml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	_, text := scrape(t, always(some()))
	check := exec.Command(promtool, "check", "metrics")
	check.Stdin = strings.NewReader(text)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A real Prometheus scrapes the agent's metrics, evaluates the alert rules, and answers the dashboard's queries.
func TestPrometheus(t *testing.T) {
	prometheus := program(t, "prometheus")
	agent := httptest.NewServer(Handler(always(some()), slog.New(slog.DiscardHandler)))
	defer agent.Close()
	rules, err := filepath.Abs("../../packaging/prometheus/dcol.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n- job_name: dcol\n  static_configs: [{targets: [%q]}]\n",
		rules, strings.TrimPrefix(agent.URL, "http://"))
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	cmd := exec.Command(prometheus, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+at)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for _, query := range []string{`dcol_info{member="alice"}`, `ALERTS{alertname="DcolProblems"}`} {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
			n, err := results(at, query)
			if err == nil && n == 1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d results, %v", query, n, err)
			}
		}
	}
	grafana := strings.NewReplacer("$job", ".+", "$instance", ".+", "$__rate_interval", "1m")
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			if _, err := results(at, grafana.Replace(q.Expr)); err != nil {
				t.Errorf("panel %q: %v", p.Title, err)
			}
		}
	}
}

// results returns how many series a query has.
func results(at, query string) (n int, err error) {
	answer, err := http.Get("http://" + at + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	var out struct {
		Error string
		Data  struct{ Result []any }
	}
	if err = json.NewDecoder(answer.Body).Decode(&out); err == nil && out.Error != "" {
		err = fmt.Errorf("%s: %s", query, out.Error)
	}
	return len(out.Data.Result), err
}
