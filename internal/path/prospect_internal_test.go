package path

import (
	"net/netip"
	"testing"
	"time"
)

// What messages may expect of a waypoint counts the direct path to the server, even if it was measured only on this connection.
func TestDirectTrip(t *testing.T) {
	server := netip.MustParseAddrPort("203.0.113.80:80")
	k := &detours{history: history{}}
	c := turn{conn: &conn{server: server}}
	if trip := k.directTrip(c); trip != 0 {
		t.Errorf("%v without any measurement", trip)
	}
	direct := &subflow{direct: true}
	direct.minRTT = 30 * time.Millisecond
	c.subflows = []*subflow{direct}
	if trip := k.directTrip(c); trip != 30*time.Millisecond {
		t.Errorf("%v, want that of the connection", trip)
	}
	k.history[trailOf("", server)] = record{trip: 20 * time.Millisecond}
	if trip := k.directTrip(c); trip != 20*time.Millisecond {
		t.Errorf("%v, want that in the history", trip)
	}
}
