package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// A member is revoked while it uses the waypoint: all it has there ends at
// once, its download goes on over the direct path, and a new certificate is
// taken without a restart.
func TestRevokedInMidSession(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	w.detoured()
	x.goesOn()

	ca := w.caDir("collective")
	serial := strings.TrimSpace(w.dcol(server, "ca", "revoke", alice, "--dir", ca, "--why", "expelled"))
	w.carry("collective", bob, "ca.crl")
	w.waypointDown("says that our certificate was revoked", "ask the collective's authority")
	w.eventually("mappings and connections of the revoked member end", func() error {
		left := append(w.mappings("servers4"), w.ourFlows()...)
		return holds(len(left) == 0, "there are %q", left)
	})
	x.goesOn()
	w.fails(alice, []string{"map", port(w.addr4(server), 80), "--via", bob}, "no session with bob", "revoked")
	log := w.run(bob, "cat", "/var/log/dcol/attribution.jsonl")
	if !strings.Contains(log, serial) || !strings.Contains(log, "expelled") {
		t.Errorf("the attribution log does not say who was expelled:\n%s", log)
	}

	// The member has read the list as well, and its status has the remedy.
	w.carry("collective", alice, "ca.crl")
	w.eventually("the status reports the revocation", func() error {
		problems := fmt.Sprint(w.mustStatus(alice).Problems)
		return holds(strings.Contains(problems, "revoked") && strings.Contains(problems, "--reissue alice"), "it says %s", problems)
	})
	w.dcol(server, "ca", "issue", alice, "--reissue", "--dir", ca)
	w.carry("collective", alice, "alice.key", "alice.crt")
	w.waypointUp()
	w.detoured()
	if problems := w.mustStatus(alice).Problems; len(problems) != 0 {
		t.Errorf("problems with a new certificate: %q", problems)
	}
	x.goesOn()
	x.endsWell()
}

// A member that was revoked while it had no session: what it left at the
// waypoint ends too.
func TestRevokedWithoutSession(t *testing.T) {
	w := standard(newWorld(t))
	ofAlice, _ := w.startBoth()
	at := strings.TrimSpace(w.dcol(alice, "map", port(w.addr4(server), 80), "--via", bob))
	x := w.transfer(alice, "curl", "--silent", "--no-buffer", "http://"+at+"/file") // plain TCP through the mapping
	x.goesOn()
	ofAlice.stop()
	x.goesOn()
	w.dcol(server, "ca", "revoke", alice, "--dir", w.caDir("collective"))
	w.carry("collective", bob, "ca.crl")
	w.eventually("mappings and connections of the revoked member end", func() error {
		left := append(w.mappings("servers4"), w.ourFlows()...)
		return holds(len(left) == 0, "there are %q", left)
	})
}

// The waypoint is revoked: the client uses it no longer.
func TestWaypointRevoked(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	w.detoured()
	w.dcol(server, "ca", "revoke", bob, "--dir", w.caDir("collective"))
	w.carry("collective", alice, "ca.crl")
	w.waypointDown("revoked", "take bob out of your configuration")
	x.goesOn()
	x.endsWell()
}

// Certificates end in mid-session, on either side; new ones are taken up
// without a restart.
func TestExpiredInMidSession(t *testing.T) {
	w := standard(newWorld(t))
	w.startBoth()
	x := w.curl(w.url())
	for _, c := range []struct {
		who   string
		words []string
	}{
		{alice, []string{"--reissue"}},
		{bob, []string{"certificate of bob", "--reissue bob"}},
	} {
		w.detoured()
		w.reissue(c.who, "4s")
		w.restartSession()
		w.waypointDown(c.words...)
		x.goesOn()
		w.reissue(c.who, "1h")
		w.waypointUp()
	}
	w.detoured()
	x.goesOn()
	x.endsWell()
}

func (w *world) reissue(who, valid string) {
	w.Helper()
	w.dcol(server, "ca", "issue", who, "--reissue", "--valid", valid, "--dir", w.caDir("collective"))
	w.carry("collective", who, who+".key", who+".crt")
}

// restartSession has alice make a new session, with the certificates that now lie there.
func (w *world) restartSession() {
	w.Helper()
	before := w.waypoint()
	w.run(bob, "nft", "table inet cut {\nchain input {\ntype filter hook input priority 0\nudp dport 45672 drop\n}\n}")
	w.waypointDown()
	w.run(bob, "nft", "delete table inet cut")
	w.eventually("a new session, or none", func() error {
		now := w.waypoint()
		return holds(now.Since != before.Since, "still the same")
	})
}

// Waypoints that differ from the configuration are refused.
func TestWrongWaypoint(t *testing.T) {
	w := newWorld(t)
	w.found("collective", alice, bob, "carol")
	w.found("others", bob)
	w.identify("collective", alice)
	w.configure(alice, clientConfig("", w.addr4(bob).String()))
	w.serve()
	w.start(alice)
	x := w.curl(w.url())
	for _, c := range []struct {
		name  string
		given func()
		words []string
	}{
		{"another collective's", func() {
			w.identify("others", bob)
			w.configure(bob, waypointConfig(labAllowed))
		}, []string{"not of your collective", "same authority"}},
		{"another member", func() {
			w.carry("collective", bob, "ca.crt", "ca.crl", "carol.crt", "carol.key")
			w.configure(bob, strings.ReplaceAll(waypointConfig(labAllowed), bob, "carol"))
		}, []string{"is carol, not bob", "correct name or addresses"}},
		{"itself", func() {
			w.identify("collective", bob)
			w.configure(bob, waypointConfig(labAllowed))
		}, nil},
	} {
		c.given()
		ofBob := w.start(bob)
		if c.words == nil {
			w.waypointUp()
			w.detoured()
			continue
		}
		w.waypointDown(c.words...)
		ofBob.stop()
		x.goesOn()
	}
	x.endsWell()
}
