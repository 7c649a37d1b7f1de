package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
)

const (
	logPath   = "/var/log/dcol/attribution.jsonl"
	hasFaults = 3 // exit codes of dcol log verify
	unproven  = 4
)

// A server's operator complains about a connection from a waypoint's address and port. The waypoint finds the
// member, even after a crash of its agent. A third party verifies the log with only the authority's
// certificate.
func TestLogOfDetours(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"mapped", "in-band", "wireguard", "openvpn"} {
		t.Run(kind, func(t *testing.T) { testLogOf(t, kind) })
	}
}

func testLogOf(t *testing.T, kind string) {
	w := withKinds(newWorld(t), kind)
	_, ofBob := w.startBoth()
	for _, state := range []string{"time_wait", "last_ack", "close_wait"} { // otherwise connections end two minutes late
		w.sysctl(bob, "net.netfilter.nf_conntrack_tcp_timeout_"+state, "1")
	}
	w.kindIs(kind, "ready")
	x := w.curl(w.url())
	w.subflows("direct up", kind+" up")
	egress := w.seenByServer()
	flow := w.loggedFlow(egress)
	if flow.Member != alice || flow.Kind != kind || flow.Server.String() != port(w.addr4(server), 80) || flow.Session == "" || !flow.Closed.IsZero() {
		t.Errorf("the log says of %v: %+v", egress, flow)
	}

	session := w.waypoint()
	ofBob.kill()
	if r := w.verifyLog(w.copyLog()); r.code != unproven || !strings.Contains(r.stdout, "Not proven: the last") || !strings.Contains(r.stdout, "not closed") {
		t.Errorf("after a crash:\n%v", r)
	}
	ofBob = w.start(bob)
	w.eventually("the agent knows the connection again", func() error {
		r := w.try(bob, "grep", "-c", `"event":"flow-found"`, logPath)
		return holds(strings.TrimSpace(r.stdout) == "1", "%v", r)
	})
	if again := w.loggedFlow(egress); again.Session != flow.Session || !again.Opened.Equal(flow.Opened) {
		t.Errorf("after a crash the log says %+v, and before %+v", again, flow)
	}
	if found := w.run(bob, "grep", `"event":"flow-found"`, logPath); !strings.Contains(found, `"session":"`+flow.Session) {
		t.Errorf("the agent has forgotten over which session it was: %s", found)
	}
	w.waypointBack(session)
	x.endsWell()
	w.eventually("the end of the connection is in the log", func() error {
		// Left alone, the kernel removes an entry whose time is over within a minute; a listing does it at once.
		listed := w.run(bob, "conntrack", "-L")
		found := w.inLog(egress)
		if len(found) != 1 {
			return fmt.Errorf("it has %d of it", len(found))
		}
		f := found[0]
		return holds(!f.Closed.IsZero() && f.BytesToClient != nil && *f.BytesToClient > 0, "it says %+v, and conntrack:\n%s", f, listed)
	})
	ofBob.stop()

	// On another host, with only the files.
	log := w.copyLog()
	r := w.verifyLog(log)
	if r.code != 0 || !strings.Contains(r.stdout, "were made by the named members") || !strings.Contains(r.stdout, "0 only the member") ||
		!strings.Contains(r.stdout, "crashed") || !strings.Contains(r.stdout, "was closed when its agent stopped") {
		t.Errorf("the copy of the log:\n%v", r)
	}
	if shown := w.dcol(mallory, "log", "show", "--egress", egress.String(), "--evidence", "--ca", w.caFile(), log); !strings.Contains(shown, "alice") ||
		!strings.Contains(shown, "\n  PROVEN: ") {
		t.Errorf("the evidence:\n%s", shown)
	}
	w.tamper(log)
}

// tamper changes a log in all ways that matter.
func (w *world) tamper(log string) {
	w.Helper()
	data, err := os.ReadFile(log)
	if err != nil {
		w.Fatal(err)
	}
	lines := strings.SplitAfter(string(data), "\n")
	n := len(lines) - 1 // nothing follows the last newline
	at := 0
	for i, l := range lines {
		if strings.Contains(l, `"event":"flow-opened"`) {
			at = i
		}
	}
	var head string
	for l := range strings.Lines(w.verifyLog(log).stdout) {
		if said, ok := strings.CutPrefix(l, "Head: "); ok {
			head = strings.TrimSpace(said)
		}
	}
	place := fmt.Sprintf("changed.jsonl:%d", at+1)
	for name, c := range map[string]struct {
		content string
		code    int
		words   string
	}{
		"blamed on another": {strings.Join(lines[:at], "") + strings.Replace(lines[at], `"member":"alice"`, `"member":"carol"`, 1) + strings.Join(lines[at+1:], ""), hasFaults, place},
		"removed":           {strings.Join(lines[:at], "") + strings.Join(lines[at+1:], ""), hasFaults, fmt.Sprintf("%s: line %d should stand before", place, at)},
		"swapped":           {strings.Join(lines[:at], "") + lines[at+1] + lines[at] + strings.Join(lines[at+2:], ""), hasFaults, "reordered"},
		"cut in a line":     {string(data[:len(data)-100]), unproven, fmt.Sprintf("changed.jsonl:%d, an incomplete line", n)},
		"cut after a line":  {strings.Join(lines[:at+1], ""), unproven, "lines at the end were cut off"},
	} {
		changed := filepath.Join(w.dir, "changed.jsonl")
		if err := os.WriteFile(changed, []byte(c.content), 0o600); err != nil {
			w.Fatal(err)
		}
		if r := w.verifyLog(changed); r.code != c.code || !strings.Contains(r.stdout, c.words) {
			w.Errorf("%s: want exit code %d and %q\n%v", name, c.code, c.words, r)
		}
		if r := w.verifyLog(changed, "--head", head); r.code != hasFaults {
			w.Errorf("%s, with a head that is known: want exit code %d\n%v", name, hasFaults, r)
		}
	}
	w.found("others", alice)
	r := w.try(mallory, program, "log", "verify", "--ca", filepath.Join(w.caDir("others"), "ca.crt"), log)
	if r.code != hasFaults || !strings.Contains(r.stdout, "not of this collective") {
		w.Errorf("with another collective's certificate:\n%v", r)
	}
}

// seenByServer returns the address and port that the server sees alice's detour come from.
func (w *world) seenByServer() netip.AddrPort {
	w.Helper()
	var seen netip.AddrPort
	w.eventually("the server sees the detour", func() error {
		for line := range strings.Lines(w.run(server, "ss", "-Htn", "state", "established", "dst", w.addr4(bob).String())) {
			fields := strings.Fields(line)
			at, err := netip.ParseAddrPort(fields[len(fields)-1])
			if err == nil {
				seen = at
				return nil
			}
		}
		return fmt.Errorf("it has no connection from %v", w.addr4(bob))
	})
	return seen
}

// loggedFlow waits until bob's log has a connection, and returns its entry.
func (w *world) loggedFlow(egress netip.AddrPort) api.LogFlow {
	w.Helper()
	var found []api.LogFlow
	w.eventually(fmt.Sprintf("the log knows %v", egress), func() error {
		found = w.inLog(egress)
		return holds(len(found) == 1, "it has %d of it", len(found))
	})
	return found[0]
}

func (w *world) inLog(egress netip.AddrPort) []api.LogFlow {
	w.Helper()
	var log api.Log
	out := w.dcol(bob, "log", "show", "--egress", egress.String(), "--json")
	if err := json.Unmarshal([]byte(out), &log); err != nil || log.Schema != api.LogSchema {
		w.Fatalf("%v\n%s", err, out)
	}
	return log.Flows
}

// copyLog carries bob's log away, where all hosts see it.
func (w *world) copyLog() string {
	w.Helper()
	data, err := w.read(bob, logPath)
	if err != nil {
		w.Fatal(err)
	}
	path := filepath.Join(w.dir, "copy.jsonl")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		w.Fatal(err)
	}
	return path
}

func (w *world) caFile() string { return filepath.Join(w.caDir("collective"), "ca.crt") }

// verifyLog checks a copy of a log on a stranger's host.
func (w *world) verifyLog(path string, more ...string) result {
	w.Helper()
	return w.try(mallory, append([]string{program, "log", "verify", "--ca", w.caFile(), path}, more...)...)
}
