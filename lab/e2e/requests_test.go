package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// The default policy of a waypoint refuses these destinations, with these messages.
func TestForbiddenDestinations(t *testing.T) {
	w := standard(newWorld(t))
	w.configure(bob, waypointConfig(""))
	w.startBoth()
	for _, c := range []struct {
		server string
		words  []string
	}{
		{"10.0.4.1:80", []string{"private"}},
		{"127.1.2.3:80", []string{"loopback"}},
		{"192.168.1.1:80", []string{"private"}},
		{"127.0.0.1:80", []string{"the waypoint itself"}},
		{"169.254.169.254:80", []string{"link-local"}},
		{"100.64.0.1:80", []string{"shared"}},
		{"224.0.0.1:80", []string{"multicast"}},
		{"0.0.0.0:80", []string{"unspecified"}},
		{"255.255.255.255:80", []string{"broadcast"}},
		{port(w.addr4(bob), 80), []string{"an address of the waypoint itself"}},
		{"198.41.0.4:25", []string{"port denied"}},
		{"198.41.0.4:0", nil},
	} {
		w.fails(alice, []string{"map", c.server, "--via", bob}, append(c.words, c.server)...)
	}
	w.fails(alice, []string{"map", "198.41.0.4:80", "--via", "carol"}, `no waypoint "carol"`, "dcol status")
	w.fails(alice, []string{"map", "[2001:500:2::c]:80", "--via", bob}, "no waypoint", "family")
	w.fails(alice, []string{"map", "example.org:80", "--via", bob}, "example.org:80", "203.0.113.5:443")
	w.fails(alice, []string{"map", "198.41.0.4:80"}, "via")
	if left := w.mappings("servers4"); len(left) != 0 {
		t.Errorf("mappings were granted: %q", left)
	}
	if refused := w.mustStatus(bob).Serving.Refused; refused["destination-forbidden"] != 11 {
		t.Errorf("bob counts refusals as %v", refused)
	}
	log := w.run(bob, "cat", "/var/log/dcol/attribution.jsonl")
	// The log has one refusal of each kind per minute.
	if !strings.Contains(log, `"server":"10.0.4.1:80","refusal":"destination-forbidden"`) || !strings.Contains(log, `"member":"alice"`) {
		t.Errorf("the attribution log does not say who asked for what:\n%s", log)
	}
	// Bob has a private address, and no member has reported bob's public one: it might be this destination.
	w.fails(alice, []string{"map", "198.41.0.4:80", "--via", bob}, "not-ready", "does not know its public address yet")

	// A transfer to a private address has no detour, and the status has the reason.
	x := w.curl(w.url())
	w.subflows("direct up")
	w.eventually("the status says why the waypoint is not used", func() error {
		s := w.waypoint()
		return holds(s.State == "up" && strings.Contains(s.Why, "private"), "it says %q", s.Why)
	})
	x.goesOn()
	x.endsWell()
}

func TestQuotaOfMappings(t *testing.T) {
	w := standard(newWorld(t))
	w.configure(bob, waypointConfig(labAllowed+"mappings_per_member = 2\n"))
	w.startBoth()
	to := func(n int) string { return port(w.addr4(server), n) }
	w.dcol(alice, "map", to(81), "--via", bob)
	w.dcol(alice, "map", to(82), "--via", bob)
	w.fails(alice, []string{"map", to(83), "--via", bob}, "may have 2")
	w.dcol(alice, "map", to(82), "--via", bob) // what it has, it keeps
	x := w.curl(w.url())
	w.eventually("the status says why there is no detour", func() error {
		s := w.waypoint()
		return holds(strings.Contains(s.Why, "may have 2"), "it says %q", s.Why)
	})
	w.subflows("direct up")
	x.endsWell()
}

// A connection beyond the quota is reset at once; its direct path goes on, and
// the first connection keeps its detour.
func TestQuotaOfConnections(t *testing.T) {
	w := standard(newWorld(t))
	w.configure(bob, waypointConfig(labAllowed+"connections_per_member = 1\n"))
	w.startBoth()
	first := w.curl(w.url())
	before := w.detoured()
	second := w.curl(w.url())
	w.eventually("the second connection's detour was tried, and reset", func() error {
		return holds(w.refused(`ct count over 1 \} counter packets (\d+)`), "nothing was reset")
	})
	for _, c := range w.mustStatus(alice).Client.Connections {
		var kinds []string
		for _, s := range c.Subflows {
			kinds = append(kinds, s.Kind+" "+string(s.State))
		}
		want := "[direct up]"
		if c.Token == before.Token {
			want = "[direct up mapped up]"
		}
		if got := fmt.Sprint(kinds); got != want {
			t.Errorf("connection %s has subflows %s, want %s", c.Token, got, want)
		}
	}
	second.goesOn()
	second.endsWell()
	first.goesOn()
	first.endsWell()
}

func TestQuotaOfRequests(t *testing.T) {
	w := standard(newWorld(t))
	w.configure(bob, waypointConfig(labAllowed+"requests_per_second = 1\n"))
	w.startBoth()
	// One is allowed a second, and two at once.
	script := `for port in $(seq 100 119); do "$0" map "$1:$port" --via bob & done; wait`
	r := w.try(alice, "bash", "-c", script, program, w.addr4(server).String())
	if !strings.Contains(r.stderr, "error: ") || !strings.Contains(r.stderr, "1 requests a second are allowed") {
		t.Errorf("20 requests at once:\n%v", r)
	}
	granted := strings.Count(r.stdout, w.addr4(bob).String()+":")
	if granted < 2 || granted == 20 {
		t.Errorf("%d requests of 20 were granted", granted)
	}
	w.eventually("requests are granted again", func() error {
		r := w.try(alice, program, "map", port(w.addr4(server), 81), "--via", bob)
		return holds(r.code == 0, "%v", r)
	})
	x := w.curl(w.url())
	x.goesOn()
	x.endsWell()
}

// What a member sends beyond its bandwidth is dropped, which TCP takes for
// congestion: nothing breaks.
func TestQuotaOfBandwidth(t *testing.T) {
	w := standard(newWorld(t))
	w.configure(bob, waypointConfig(labAllowed+"bandwidth_per_member = \"10mbit\"\n"))
	w.startBoth()
	at := strings.TrimSpace(w.dcol(alice, "map", port(w.addr4(server), 80), "--via", bob))
	narrow := w.transfer(alice, "curl", "--silent", "--no-buffer", "http://"+at+"/file")
	narrow.goesOn()
	x := w.curl(w.url())
	w.detoured()
	x.goesOn()
	x.endsWell()
	narrow.goesOn()
	w.eventually("the waypoint drops what is too much", func() error {
		return holds(w.refused(`burst \d+ \w+ \} counter packets (\d+)`), "nothing was dropped")
	})
}

// refused reports whether a rule of bob's table, found by a pattern, has counted packets.
func (w *world) refused(rule string) bool {
	w.Helper()
	table := w.run(bob, "nft", "list", "table", "inet", "dcol")
	found := regexp.MustCompile(rule).FindStringSubmatch(table)
	if found == nil {
		w.Fatalf("bob's table has no rule like %s:\n%s", rule, table)
	}
	return found[1] != "0"
}
