package experiment

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/scenario"
)

// Every subflow has the congestion control that was asked for, at both ends and through
// tunnels too, whatever the machine's default is and whichever its namespaces may choose.
func TestSubflowsHaveTheCongestionControl(t *testing.T) {
	needRoot(t)
	t.Parallel()
	program := buildPrograms(t)
	available, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		t.Fatal(err)
	}
	// Not those that other tests have registered: they may end at any time.
	names := slices.DeleteFunc(strings.Fields(string(available)), func(name string) bool { return !kernels.MatchString(name) })
	for _, name := range append(names, "lia") {
		for _, kind := range []scenario.Detour{scenario.Mapped, scenario.WireGuard} {
			t.Run(name+"-"+string(kind), func(t *testing.T) {
				t.Parallel()
				s := parse(t, strings.Replace(kindsNetwork, `name = "kinds"`, `name = "kinds"`+"\ncongestion_control = \""+name+`"`, 1)+`
[workload]
kind = "http"
size = "4MB"
[[procedure]]
name = "p"
transport = "mptcp"
detour = "`+string(kind)+`"
`)
				for host, got := range congestionsSeen(t, s, program) {
					// A registration's name may end with a number.
					if len(got) < 2 || slices.ContainsFunc(got, func(g string) bool { return g != name && !strings.HasPrefix(g, name+"_") }) {
						t.Errorf("sockets of %s have %q", host, got)
					}
				}
			})
		}
	}
}

// kernels are the congestion controls that the test knows of the kernel's own.
var kernels = regexp.MustCompile(`^(cubic|reno|bbr|vegas|westwood|dctcp)$`)

// congestionsSeen are those of all connections of client and server, at the moment when
// there were most.
func congestionsSeen(t *testing.T, s *scenario.Scenario, program programs.Pair) map[string][]string {
	t.Helper()
	l, err := Open(t.Context(), s, Options{Programs: program, Out: t.TempDir(), anyFidelity: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	algorithm := regexp.MustCompile(`\b(cubic|reno|bbr|vegas|westwood|dctcp|lia(_[0-9]+)?)\b`)
	seen := map[string][]string{"client": nil, "server": nil}
	look := func(Live) { // one at a time, and over before Execute is
		for host := range seen {
			out, err := l.net.Host(host).Command(t.Context(), "ss", "-tinH", "state", "established").Output()
			if err != nil {
				continue // it ended just now
			}
			var got []string
			for line := range bytes.Lines(out) {
				if name := algorithm.Find(line); name != nil && bytes.Contains(line, []byte("rtt:")) {
					got = append(got, string(name))
				}
			}
			if len(got) > len(seen[host]) {
				seen[host] = got
			}
		}
	}
	base, _ := s.Variant(scenario.Base)
	if _, err := l.Execute(t.Context(), Order{Variant: base, Procedure: s.Procedures[0], Log: "p", Live: look}); err != nil {
		t.Fatal(err)
	}
	return seen
}
