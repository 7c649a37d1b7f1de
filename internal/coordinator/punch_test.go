package coordinator

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/enrol"
)

// A punch request is passed on with the sender's name, and to members only.
func TestPunch(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alice, bob := w.member("alice").connect(), w.member("bob").connect()
	if err := bob.publish(bob.record()); err != nil {
		t.Fatal(err)
	}
	ask := func(p enrol.Punch) error {
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		_, err = alice.ask(enrol.TopicPunch, data)
		return err
	}
	place := []netip.AddrPort{netip.MustParseAddrPort("203.0.113.9:45672")}
	if err := ask(enrol.Punch{With: "bob", ID: enrol.PunchID{7}, At: place}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "bob is told", 5*time.Second, func() bool { return bob.last(enrol.TopicPunch) != nil })
	if p := fromJSON[enrol.Punch](t, bob.last(enrol.TopicPunch)); p.With != "alice" || p.ID != (enrol.PunchID{7}) || p.At[0] != place[0] {
		t.Errorf("bob is told %+v", p)
	}
	for _, p := range []enrol.Punch{
		{With: "carol", At: place}, // no member
		{With: "alice", At: place}, // itself, and a member that is no waypoint
		{With: "bob"},
		{With: "bob", At: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:45672")}},
	} {
		wantBusRefusal(t, ask(p))
	}
	_, err := alice.ask(enrol.TopicPunch, []byte("{"+strings.Repeat(" ", maxPunch)+"}"))
	wantBusRefusal(t, err)
}
