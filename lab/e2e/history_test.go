package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
)

// What a download carried over a detour is in the history, also after another agent has taken over. The page shows the
// agent's state to who has its link.
func TestHistoryAndPage(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	w.detoured()
	over := func() (bytes uint64) {
		var h api.History
		if err := json.Unmarshal([]byte(w.dcol(alice, "history", "--by", "minute", "--json")), &h); err != nil {
			t.Fatal(err)
		}
		for _, p := range h.Total.Paths {
			if p.Waypoint == bob {
				bytes += p.Received
			}
		}
		return bytes
	}
	w.eventually("the history has the detour", func() error { return holds(over() > 0, "it has not") })
	link := strings.TrimSpace(w.dcol(alice, "web"))
	page := w.run(alice, "curl", "-sS", link)
	root, code, _ := strings.Cut(link, "/#code=")
	begin := func() string {
		return w.run(alice, "curl", "-sS", "-H", "Origin: "+root, "-d", `{"code": "`+code+`"}`, root+"/api/session")
	}
	var session struct{ Token string }
	if err := json.Unmarshal([]byte(begin()), &session); err != nil || session.Token == "" {
		t.Fatalf("the link begins no session: %v", err)
	}
	if state := w.run(alice, "sh", "-c", "curl -sSN -H 'Authorization: Bearer "+session.Token+"' "+root+"/api/stream | head -n 1"); !strings.Contains(page, "<title>dcol</title>") || !strings.Contains(state, bob) {
		t.Errorf("the page is %.100s, its state %.100s", page, state)
	}
	if again := begin(); !strings.Contains(again, "used already") {
		t.Errorf("used again, the link gives %.100s", again)
	}
	before := over()
	w.restart(alice)
	if after := over(); after < before {
		t.Errorf("%d bytes before the restart, %d afterwards", before, after)
	}
	x.endsWell()
}
