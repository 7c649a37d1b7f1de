package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// With nothing configured but the waypoint, detours are in-band ones, and the waypoint
// holds nothing for them before they come.
func TestInBandByDefault(t *testing.T) {
	w := withKinds(newWorld(t))
	w.startBoth()
	w.kindIs("in-band", "ready")
	x := w.curl(w.url())
	c := w.subflows("direct up", "in-band up")
	d := detour(c)
	if d.Remote.Addr() != w.addr4(bob) || d.Remote.Port() != 80 || d.Waypoint != bob {
		t.Errorf("the detour is %+v, want one to port 80 of %v", d, w.addr4(bob))
	}
	if !strings.Contains(d.Why, "in-band comes first of what bob offers") {
		t.Errorf("the status says that it was chosen because %q", d.Why)
	}
	w.cut()
	x.goesOn()
	w.mend()
	if flows := w.ourFlows(); len(flows) != 1 {
		t.Errorf("bob forwards %q, want one connection", flows)
	}
	if s := w.inBand(); !s.Authenticated || s.Addresses != 1 || s.Accepted != 1 || s.BadAuthenticator+s.Malformed+s.Replayed+s.UnknownAddress != 0 {
		t.Errorf("bob says of in-band SYNs: %+v", s)
	}
	log := w.run(bob, "cat", "/var/log/dcol/attribution.jsonl")
	if !strings.Contains(log, `"event":"flow-opened","member":"alice"`) || !strings.Contains(log, fmt.Sprintf(`"port":80,"server":"%v:80"`, w.addr4(server))) {
		t.Errorf("the attribution log does not say who went where, and how:\n%s", log)
	}
	x.endsWell()
}
