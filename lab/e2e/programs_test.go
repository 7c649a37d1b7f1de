package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/doctor"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// A static program gets its detour like a dynamic one.
func TestStaticProgram(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.transfer(alice, program, "run", "--", static, w.url())
	w.detoured()
	w.cut()
	x.goesOn()
	w.mend()
	x.endsWell()
}

// Outputs of dcol run and of the program that it runs.
func TestRunsPrograms(t *testing.T) {
	w := standard(newWorld(t))
	noProgram := filepath.Join(w.dir, "no-program")
	if err := os.WriteFile(noProgram, []byte{0}, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		argv   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{"sh", "-c", "echo out; echo err >&2; exit 7"}, 7, "out\n", "err\n"},
		{[]string{"no-such-program"}, 127, "", "no-such-program"},
		{[]string{noProgram}, 126, "", noProgram},
		{[]string{"sh", "-c", "kill -TERM $$"}, -1, "", ""},
	} {
		r := w.try(alice, append([]string{program, "run", "--"}, c.argv...)...)
		if r.code != c.code || r.stdout != c.stdout || !strings.Contains(r.stderr, c.stderr) {
			t.Errorf("want exit code %d, stdout %q, stderr with %q\n%v", c.code, c.stdout, c.stderr, r)
		}
	}
	// Without MPTCP the program still runs, over plain TCP, and the user is notified.
	w.sysctl(alice, "net.mptcp.enabled", "0")
	x := w.curl(w.url())
	x.endsWell()
	if said := x.stderr.String(); !strings.Contains(said, "plain TCP") || !strings.Contains(said, "net.mptcp.enabled=1") {
		t.Errorf("without MPTCP dcol run says %q", said)
	}
}

// An upload, by a program that talks as much as it listens, whose waypoint vanishes.
func TestUpload(t *testing.T) {
	w := standard(newWorld(t))
	serving := w.host(server).Command(w.life(), program, "run", "--", "iperf3", "--server", "--one-off")
	if err := serving.Start(); err != nil {
		t.Fatal(err)
	}
	go serving.Wait()
	w.eventually("iperf3 listens", func() error {
		return holds(w.run(server, "ss", "-Htln", "sport = :5201") != "", "nothing listens")
	})
	w.startBoth()
	const seconds = "6"
	x := w.transfer(alice, program, "run", "--", "iperf3", "--client", w.addr4(server).String(),
		"--bitrate", "50M", "--time", seconds, "--json")
	w.eventually("two connections with a detour each", func() error {
		all := w.mustStatus(alice).Client.Connections
		n := 0
		for _, c := range all {
			if len(c.Subflows) == 2 && c.Subflows[1].State == "up" {
				n++
			}
		}
		return holds(n == 2, "%d of %d", n, len(all))
	})
	w.link(bob, true)
	<-x.ended
	if x.err != nil {
		t.Errorf("iperf3: %v", x.err)
	}
}

// The status as people read it.
func TestStatusText(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	w.detoured()
	w.eventually("the status has rates", func() error {
		c, err := w.only()
		if err != nil {
			return err
		}
		return holds(c.Subflows[0].ReceiveRate+c.Subflows[1].ReceiveRate > 0, "they are zero: %+v", c.Subflows)
	})
	for host, words := range map[string][]string{
		alice: {"alice (client)", "bob", "10.0.2.1:45672", "up ", "to 10.0.4.1:80", "direct", "via bob (mapped)"},
		bob:   {"bob (waypoint)", "listening on UDP :45672", "1 session,", "1 mapping,", "alice"},
	} {
		said := w.dcol(host, "status")
		for _, word := range words {
			if !strings.Contains(said, word) {
				t.Errorf("the status of %s does not say %q:\n%s", host, word, said)
			}
		}
	}
	x.endsWell()
	w.fails(mallory, []string{"status"}, "no agent is running", "if this host is no member yet, run dcol join")
}

// dcol doctor on hosts as they are, and with one thing amiss at a time.
func TestDoctor(t *testing.T) {
	w := standard(newWorld(t))
	limits, err := mptcp.Limits()
	if err != nil {
		t.Fatal(err)
	}
	kernel := doctor.OK
	if len(limits) > 0 {
		kernel = doctor.Info
	}
	// A host that is no member yet.
	w.finds(mallory, map[string]doctor.State{"mptcp": doctor.OK, "userspace-pm": doctor.OK, "path-manager": doctor.OK,
		"config": doctor.Skipped, "identity": doctor.Skipped, "agent": doctor.Info, "rp-filter": doctor.OK,
		"kernel-limits": kernel})
	w.startBoth()
	w.finds(alice, map[string]doctor.State{"config": doctor.OK, "identity": doctor.OK, "agent": doctor.OK,
		"path-manager": doctor.OK, "forwarding": doctor.Skipped, "sockets-seccomp": doctor.OK})
	w.finds(bob, map[string]doctor.State{"agent": doctor.OK, "forwarding": doctor.OK, "port": doctor.OK,
		"nftables": doctor.OK, "conntrack": doctor.OK, "firewall": doctor.OK})

	w.sysctl(alice, "net.ipv4.conf.all.rp_filter", "1")
	w.sysctl(alice, "net.mptcp.pm_type", "0")
	w.configure(alice, "colour = 1\n")
	w.finds(alice, map[string]doctor.State{"rp-filter": doctor.Warning, "config": doctor.Failed})
	w.sysctl(bob, "net.ipv4.ip_forward", "0")
	w.run(bob, "nft", "table ip filter {\nchain FORWARD {\ntype filter hook forward priority 0\npolicy drop\n}\n}")
	w.finds(bob, map[string]doctor.State{"forwarding": doctor.Failed, "firewall": doctor.Warning})
	w.sysctl(mallory, "net.mptcp.enabled", "0")
	w.finds(mallory, map[string]doctor.State{"mptcp": doctor.Failed})
}

// finds runs dcol doctor and checks the states, a remedy for each problem, and the exit code.
func (w *world) finds(host string, want map[string]doctor.State) {
	w.Helper()
	r := w.try(host, program, "doctor", "--json")
	var report doctor.Report
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		w.Fatalf("%v\n%v", err, r)
	}
	if report.Schema != "dcol.doctor/1" {
		w.Errorf("schema %q", report.Schema)
	}
	code := 0
	if !report.Healthy() {
		code = 1
	}
	if r.code != code {
		w.Errorf("exit code %d, want %d", r.code, code)
	}
	for name, state := range want {
		i := slices.IndexFunc(report.Findings, func(f doctor.Finding) bool { return f.Code == name })
		switch {
		case i < 0:
			w.Errorf("on %s: no check %s", host, name)
		case report.Findings[i].State != state:
			w.Errorf("on %s: %s is %+v, want %s", host, name, report.Findings[i], state)
		}
	}
	text := w.try(host, program, "doctor").stdout
	for _, f := range report.Findings {
		amiss := f.State == doctor.Failed || f.State == doctor.Warning
		if amiss && f.Fix == "" || !strings.Contains(text, f.Title) {
			w.Errorf("on %s: %+v has no fix, or is not in the text:\n%s", host, f, text)
		}
		if f.State == doctor.Failed && want[f.Code] != doctor.Failed {
			w.Errorf("on %s: %+v", host, f)
		}
	}
}
