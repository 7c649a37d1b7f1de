package e2e

import (
	"os"
	"strings"
	"testing"
)

// A running download leaves a waypoint that is to be avoided, and takes it again when it is wanted.
func TestSteer(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	w.detoured()
	if said := w.dcol(alice, "avoid", bob, "--for", "1h"); !strings.Contains(said, "Never taken: bob, until ") {
		t.Errorf("dcol avoid says %q", said)
	}
	w.subflows("direct up")
	x.goesOn()
	why := w.dcol(alice, "why", w.addr4(server).String()+":80")
	for _, words := range []string{"Connections\n", "direct ", "via bob", "you do not want this waypoint (dcol use, dcol avoid)", "Paths that it left\n", "ended, because you did not want its waypoint"} {
		if !strings.Contains(why, words) {
			t.Errorf("dcol why lacks %q:\n%s", words, why)
		}
	}
	if said := w.dcol(alice, "use", "--only", bob); !strings.Contains(said, "Taken, and no other: bob\n") || strings.Contains(said, "Never") {
		t.Errorf("dcol use says %q", said)
	}
	w.detoured()
	x.goesOn()
	x.endsWell()
	w.eventually("the connection is explained after its end", func() error {
		why = w.dcol(alice, "why", w.addr4(server).String())
		return holds(strings.Contains(why, ", ended ") && strings.Contains(why, "you want bob to be taken first"), "it says %s", why)
	})
	w.fails(alice, []string{"use", "bbo"}, `"bbo" is not a waypoint that this host knows`, "bob")
	w.fails(alice, []string{"avoid", alice}, "this host itself")

	// The configuration may name a waypoint that there is not, and so rule out all.
	w.dcol(alice, "config", "set", "client.use", `["bbo"]`)
	w.dcol(alice, "config", "set", "client.use_only", "true")
	w.dcol(alice, "reload")
	said := w.dcol(alice, "use")
	for _, words := range []string{"bbo (this host knows no such waypoint)\n", "bbo is not connected: connections have only their direct path until it is; "} {
		if status := w.dcol(alice, "status"); !strings.Contains(said, words) || !strings.Contains(status, words) {
			t.Errorf("dcol use and dcol status lack %q:\n%s\n%s", words, said, status)
		}
	}
	if why := w.dcol(alice, "why", w.addr4(server).String()+":80"); !strings.Contains(why, "client.use_only is true and client.use lacks bob: dcol config set ") {
		t.Errorf("dcol why names no setting:\n%s", why)
	}

	// A choice outlives its waypoint, and can be undone.
	w.dcol(alice, "use", bob)
	without, _, _ := strings.Cut(clientConfig("use = [\"bbo\"]\nuse_only = true\n", w.addr4(bob).String()), "[[client.waypoint]]")
	w.configure(alice, without)
	w.dcol(alice, "reload")
	if said := w.dcol(alice, "use"); said != "Taken first: bob (this host knows no such waypoint)\n" {
		t.Errorf("dcol use says %q", said)
	}
	if said := w.dcol(alice, "use", "--reset", bob); !strings.HasPrefix(said, "Taken, and no other: bbo (this host knows no such waypoint)\n") {
		t.Errorf("dcol use --reset bob says %q", said)
	}
	w.fails(alice, []string{"use", "--reset", bob}, `"bob" is neither preferred nor avoided, and not a waypoint that this host knows; `)
}

// The running agent logs more or less, as it is asked to.
func TestLogLevel(t *testing.T) {
	w := standard(newWorld(t))
	ofAlice, _ := w.startBoth()
	steered := func() int {
		w.dcol(alice, "use", bob)
		log, err := os.ReadFile(ofAlice.log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(log), "waypoints are steered")
	}
	if said := w.dcol(alice, "log-level", "error"); said != "error\n" {
		t.Errorf("dcol log-level says %q", said)
	}
	if n := steered(); n != 0 {
		t.Errorf("at level error, logged %d times", n)
	}
	if said := w.dcol(alice, "log-level", "client=info"); said != "error\nclient=info\n" {
		t.Errorf("dcol log-level says %q", said)
	}
	if n := steered(); n != 1 {
		t.Errorf("with client=info, logged %d times", n)
	}
	w.fails(alice, []string{"log-level", "clint=info"}, `"clint" is not a subsystem of this agent`, "client")
}
