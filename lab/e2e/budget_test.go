package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// A download uses its detour until the month's budget is used up, and goes on without. After a restart the budget is
// still used up.
func TestBudget(t *testing.T) {
	w := standard(newWorld(t))
	w.configure(alice, clientConfig("[client.budget]\ntotal = \"3MB\"\n", w.addr4(bob).String()))
	w.startBoth()
	if said := w.dcol(alice, "status"); !strings.Contains(said, "Detours: 0 B of 3.0 MB used this month (0 %), renews on ") {
		t.Errorf("dcol status says\n%s", said)
	}
	x := w.curl(w.url())
	w.detoured()
	for range 3 {
		x.goesOn()
	}
	w.eventually("the detour carried its share", func() error {
		x.goesOn()
		list := w.mustStatus(alice).Client.Budgets
		return holds(len(list) == 1 && list[0].Level == "spent", "budgets: %+v", list)
	})
	w.subflows("direct up", "mapped backup")
	x.goesOn()
	const reason = "this month's 3 MB for detours are used up (client.budget.total)"
	if said := w.dcol(alice, "status"); !strings.Contains(said, "PROBLEM: "+reason) || !strings.Contains(said, "raise the budget") {
		t.Errorf("dcol status says\n%s", said)
	}
	x.endsWell()
	w.restart(alice)
	w.waypointUp()
	y := w.curl(w.url())
	y.goesOn()
	w.subflows("direct up")
	if said := w.dcol(alice, "why", w.addr4(server).String()+":80"); !strings.Contains(said, "no detour: "+reason) {
		t.Errorf("dcol why says\n%s", said)
	}
	y.endsWell()
}

// What connections carry is counted to the last byte, even if they end before they are sampled.
func TestShortConnectionsAreCounted(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	const times, size = 5, 200_000
	for range times {
		w.run(alice, program, "run", "--", "curl", "-sS", "-o", "/dev/null", "-r", fmt.Sprintf("0-%d", size-1), w.url())
	}
	w.eventually("all is counted", func() error {
		var received uint64
		list := w.mustStatus(alice).Client.Counters.Carried
		for _, c := range list {
			received += c.Received
		}
		// The server's kernel repeats some of it on the other subflow.
		return holds(received >= times*size && received <= 3*times*size/2, "%d bytes: %+v", received, list)
	})
}
