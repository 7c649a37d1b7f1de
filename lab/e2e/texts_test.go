package e2e

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// newcomersTexts are the texts whose commands are executed.
var newcomersTexts = []string{"README.md", "docs/installing.md", "docs/how-it-works.md"}

// errand is a command of these texts, and where and how it is run.
type errand struct {
	line string // as a text has it
	host string
	// replace has pairs of what the text shows as an example, and what it is here.
	replace []string
	words   string // that the command prints
	// goesOn is set if the command serves or watches until it is interrupted.
	goesOn bool
}

// The commands of README.md take a newcomer to a detour and show it, in this order. Each dcol command of the newcomer's
// texts is executed, with the addresses and names of this network. (`make test-deb` executes those that install the package.)
func TestCommandsOfTheReadme(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3, which serves the file in README.md")
	}
	w := newWorld(t)
	at := w.goPublic()
	w.showBackgroundAgents()
	to := []string{"203.0.113.5", at[server].String(), "example.org", at[server].String(), "server.example", at[server].String(), "SERVER", at[server].String()}
	invitation := []string{"dcol1-...", ""}
	errands := []errand{
		{line: "dcol doctor", host: alice, words: "MPTCP in the kernel"},
		{line: "dcol init friends", host: bob, words: "friends is created"},
		{line: "dcol invite", host: bob, words: "dcol1-"},
		{line: "dcol join dcol1-...", host: alice, replace: invitation, words: "This host is a member of friends now: alice."},
		{line: "dcol members", host: alice, words: "friends: 2 members"},
		{line: "dcol run -- python3 -m http.server 80 --directory /tmp/files", host: server, replace: []string{"/tmp/files", webRoot}, goesOn: true},
		{line: "dcol run -- curl -o /dev/null http://203.0.113.5/big", host: alice, replace: append([]string{"/big", "/file", "curl", "curl --limit-rate 200k"}, to...), goesOn: true},
		{line: "dcol status", host: alice, words: "via bob (in-band)"},
		{line: "dcol why example.org", host: alice, replace: to, words: "A new connection to"},
		{line: "dcol history", host: alice, words: "DETOURS"},
		{line: "dcol use bob", host: alice, words: "bob"},
		{line: "dcol avoid carol", host: alice, replace: []string{"carol", "bob"}, words: "bob"},
		{line: "dcol convert auto", host: alice, words: "none: no waypoint in use offers one"},
		{line: "dcol web", host: alice, words: "http://127.0.0.1:"},
		{line: "dcol doctor --path SERVER", host: alice, replace: to, words: "MPTCP"},
		{line: "dcol trace example.org", host: alice, replace: to, words: at[server].String()},
		{line: "dcol top", host: alice, goesOn: true},
		{line: "dcol notify -- notify-send dcol", host: alice, goesOn: true},
		{line: "dcol agent --sample", host: alice, words: "[client]"},
		{line: "dcol expel", host: bob, replace: []string{"expel", "expel alice --why test"}, words: "alice"},
	}
	// These name what other commands show.
	elsewhere := []string{"dcol run", "dcol run -- PROGRAM", "dcol agent"}
	lines := newcomersCommands(t)
	for _, line := range lines {
		executed := slices.ContainsFunc(errands, func(e errand) bool { return e.line == line })
		if !executed && !slices.Contains(elsewhere, line) {
			t.Errorf("%q have a command that no test executes: %s", newcomersTexts, line)
		}
	}
	for _, e := range errands {
		if !slices.Contains(lines, e.line) {
			t.Errorf("%q no longer have this command: %s", newcomersTexts, e.line)
		}
	}
	for _, e := range errands {
		w.execute(e)
		if e.line == "dcol invite" {
			invitation[1] = w.invitation()
		}
	}
}

// execute runs a command, and checks what it prints or that it goes on.
func (w *world) execute(e errand) {
	w.Helper()
	argv := strings.Fields(strings.NewReplacer(e.replace...).Replace(e.line))
	argv[0] = program
	switch {
	case strings.HasPrefix(e.line, "dcol doctor"): // its exit code is about this machine
		w.mentions(w.try(e.host, argv...), e.words)
		return
	case e.line == "dcol top": // in a terminal
		argv = []string{"script", "-qec", strings.Join(argv, " "), "/dev/null"}
	}
	if e.line == "dcol history" { // which is written every few seconds
		w.eventually(e.line+" shows the detour", func() error {
			said := w.run(e.host, argv...)
			return holds(strings.Contains(said, e.words), "it says %s", said)
		})
		return
	}
	if !e.goesOn {
		w.says(w.try(e.host, argv...), e.words)
		return
	}
	x := w.transfer(e.host, argv...)
	switch {
	case e.host == server:
		w.eventually("the server listens", func() error {
			return holds(w.run(server, "ss", "-Htln", "sport = :80") != "", "nothing listens")
		})
	case strings.Contains(e.line, "curl"):
		w.subflows("direct up", "in-band up")
	default:
		select {
		case <-x.ended:
			w.Errorf("%s ended: %v %s", e.line, x.err, x.stderr.String())
		default:
		}
	}
}

var (
	textBlock = regexp.MustCompile("(?s)\n```[a-z]*\n(.*?)```\n")
	textWord  = regexp.MustCompile("`(?:sudo )?(dcol [a-z][^`]*)`")
)

// newcomersCommands returns the dcol commands of the newcomer's texts, in their blocks and in their sentences.
func newcomersCommands(t *testing.T) (list []string) {
	for _, name := range newcomersTexts {
		text, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range textBlock.FindAllStringSubmatch(string(text), -1) {
			for line := range strings.Lines(block[1]) {
				if line = strings.TrimPrefix(strings.TrimSpace(line), "sudo "); strings.HasPrefix(line, "dcol ") {
					list = append(list, line)
				}
			}
		}
		prose := textBlock.ReplaceAllString(string(text), "\n")
		for _, word := range textWord.FindAllStringSubmatch(prose, -1) {
			list = append(list, word[1])
		}
	}
	if len(list) < 20 {
		t.Fatalf("%q have only %d commands: are they still read right?", newcomersTexts, len(list))
	}
	return list
}
