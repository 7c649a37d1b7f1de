package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// The agent's figures are there for Prometheus, and the port is waited for if another program has it.
func TestMetrics(t *testing.T) {
	w := standard(newWorld(t))
	w.configure(alice, clientConfig("", w.addr4(bob).String())+"\n[metrics]\nlisten = \"127.0.0.1:9567\"\n")
	holder := w.host(alice).Command(w.life(), "socat", "-u", "TCP-LISTEN:9567,bind=127.0.0.1", "STDOUT")
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	w.eventually("socat has the port", func() error {
		return holds(strings.Contains(w.run(alice, "ss", "-tln"), "127.0.0.1:9567"), "it has not")
	})
	w.startBoth()
	w.eventually("the status names the program", func() error {
		said := w.dcol(alice, "status")
		return holds(strings.Contains(said, "metrics") && strings.Contains(said, "9567") && strings.Contains(said, "socat"), "it says %s", said)
	})
	_ = holder.Process.Kill()
	_ = holder.Wait()
	x := w.curl(w.url())
	w.detoured()
	x.goesOn()
	received := regexp.MustCompile(`(?m)^dcol_path_received_bytes_total\{kind="mapped",waypoint="bob"\} [1-9]`)
	w.eventually("the metrics show what came over the detour", func() error {
		text := w.run(alice, "curl", "-sS", "--retry", "20", "--retry-connrefused", "--retry-delay", "1", "http://127.0.0.1:9567/metrics")
		return holds(received.MatchString(text) && strings.Contains(text, "dcol_connections 1\n"), "%s", text)
	})
	x.endsWell()
	if code := w.run(alice, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", fmt.Sprintf("http://127.0.0.1:%d/", 9567)); code != "404" {
		t.Errorf("another page: %s", code)
	}
}
