package membership

import (
	"net/netip"
	"testing"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// A member that needs hole punching has its address sent to the waypoint, and the one that chooses the waypoint
// knows that punching is needed.
func TestPunch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.join("alice", hour), w.join("bob", hour)
	type knock struct {
		from string
		id   [12]byte
		at   netip.AddrPort
	}
	knocks := make(chan knock, 8)
	bob.knock = func(from string, id [12]byte, at []netip.AddrPort) { knocks <- knock{from, id, at[0]} }
	alice.start()
	bob.start()
	connected := func(s State) bool { return s.Bus.Connected }
	alice.await("connected", connected)
	bob.await("connected", connected)
	bob.Offer(Offer{
		Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.9")}, Port: 50000, Punch: true,
		Roles: []string{directory.RoleWaypoint}, Kinds: []string{"wireguard"},
	})
	if c := alice.awaitChoice("bob"); !c[0].Punch || c[0].Port != 50000 {
		t.Errorf("alice chose %+v", c)
	}
	want := knock{"alice", [12]byte{1, 2, 3}, netip.MustParseAddrPort("198.51.100.1:40000")}
	// Nonsense has no effect.
	w.tellOne("bob", enrol.TopicPunch, enrol.Punch{With: "alice"})
	w.tellOne("bob", enrol.TopicPunch, "nonsense")
	if err := alice.Punch(t.Context(), "bob", want.id, []netip.AddrPort{want.at}); err != nil {
		t.Fatal(err)
	}
	if got := <-knocks; got != want {
		t.Errorf("bob knocks %+v, want %+v", got, want)
	}
}
