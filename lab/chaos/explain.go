package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// explain stores the state of hosts at a moment at which something is wrong. It leaves out
// what cannot be read.
func (w *world) explain(ctx context.Context, moment string) {
	type question struct {
		host string
		argv []string
	}
	questions := []question{
		{alice, []string{w.Programs.DCol, "status", "--json"}}, {alice, []string{"ss", "-tniM"}}, {alice, []string{"ip", "rule"}},
		{alice, []string{"ip", "addr"}}, {alice, []string{"nstat", "-az"}},
		{server, []string{"ss", "-tniM"}}, {server, []string{"nstat", "-az"}},
	}
	if w.plan.Converter != "" {
		questions = append(questions, question{converter, []string{w.Programs.DCol, "status"}}, question{converter, []string{"ss", "-tniM"}},
			question{converter, []string{"nft", "list", "ruleset"}}, question{alice, []string{"nft", "list", "ruleset"}})
	}
	for _, name := range w.waypoints {
		questions = append(questions, question{name, []string{w.Programs.DCol, "status"}},
			question{name, []string{"conntrack", "-L"}}, question{name, []string{"nft", "list", "ruleset"}})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, at %s\n", moment, time.Now().Format(time.RFC3339Nano))
	for _, q := range questions {
		out, err := w.run(ctx, q.host, q.argv...)
		fmt.Fprintf(&b, "\n=== %s: %s\n%s", q.host, strings.Join(q.argv, " "), out)
		if err != nil {
			fmt.Fprintf(&b, "%v\n", err)
		}
	}
	_ = os.WriteFile(filepath.Join(w.dir, "state-"+strings.ReplaceAll(moment, " ", "-")+".txt"), []byte(b.String()), 0o644)
}

// mostLog bounds the end of an attribution log that is kept.
const mostLog = 4 << 20

// keepLogs copies the waypoints' attribution logs, which end with their hosts.
func (w *world) keepLogs() {
	for _, name := range w.waypoints {
		data, _ := w.Host(name).ReadFile("/var/log/dcol/attribution.jsonl") // without a log there is less to look into
		data = data[max(0, len(data)-mostLog):]
		_ = os.WriteFile(filepath.Join(w.dir, "attribution-"+name+".jsonl"), data, 0o644)
	}
}
