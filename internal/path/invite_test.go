package path_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// invited returns a connection that has carried data over the direct path and the waypoints a and b for a minute. A
// third waypoint with this many Mbit/s is loaded and states that it gives more than b.
func invited(t *testing.T, has float64) (*fluid, *transfer) {
	t.Helper()
	const trip = 40 * time.Millisecond
	mbit := func(rate float64) *way { return wayOf(trip, &link{rate: rate * 1e6, buffer: 100 * time.Millisecond}) }
	f := offeredTo(t, 3, map[string]*way{"": mbit(12), "a": mbit(9), "b": mbit(3), "full": mbit(has)}, "a", "b", "full")
	f.tellLoad(1)
	d := f.connect(0)
	f.tellLoad(60)
	return f, d
}

// tellLoad lets the loaded waypoint state each second that one more member would get 12 Mbit/s.
func (f *fluid) tellLoad(seconds int) {
	for range seconds {
		f.tell(path.WaypointLoaded{Waypoint: "full", Addr: addrOf("full"), Until: f.now.Add(15 * time.Second), Gives: 12e6})
		f.run(time.Second)
	}
}

// A loaded waypoint that states more than the poorest detour carries, and gives it, takes the place of that detour.
func TestInvitation(t *testing.T) {
	_, d := invited(t, 12)
	if d.over("full") == nil || d.over("b") != nil || d.over("a") == nil {
		t.Errorf("the connection has %v", d.log)
	}
}

// A waypoint that gives less than it states is tried less and less often, also by this host's next connection.
func TestInvitationIsALie(t *testing.T) {
	f, d := invited(t, 2)
	if n := triesFull(d); d.over("full") != nil || d.over("b") == nil || n == 0 || n > 2 {
		t.Errorf("the connection tried it %d times: %v", n, d.log)
	}
	f.close(d)
	f.run(2 * time.Second)
	d = f.connect(0)
	f.tellLoad(20)
	if triesFull(d) != 0 {
		t.Errorf("the next connection tried it: %v", d.log)
	}
}

func triesFull(d *transfer) int { return strings.Count(strings.Join(d.log, "\n"), "join full") }

// A waypoint that gives less than it states towards several networks of servers is believed by no connection for a while, so
// that it does not cost each of many networks a try.
func TestInvitationIsALieToMany(t *testing.T) {
	f, d := invited(t, 2)
	tries := []int{triesFull(d)}
	network := func(n byte) int {
		f.close(d)
		f.run(2 * time.Second)
		d = f.connectTo(netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, n, 1}), 80), 0)
		f.tellLoad(60)
		return triesFull(d)
	}
	for n := range byte(12) {
		tries = append(tries, network(n))
	}
	sum := 0
	for _, n := range tries[3:] {
		sum += n
	}
	if tries[1] == 0 || tries[2] == 0 || sum > 3 {
		t.Errorf("connections to one network after another tried it %v times", tries)
	}
	f.now = f.now.Add(path.BelievedAfter)
	if network(100) == 0 {
		t.Error("it is never believed again")
	}
}

// A connection leaves a loaded waypoint for one that is not loaded. It does not leave for one that a single member
// uses up if it would get no more there.
func TestUsedUpByOne(t *testing.T) {
	const mbit = 1e6
	for _, c := range []struct {
		gives float64
		joins bool
	}{{0, true}, {0.5 * mbit, false}, {20 * mbit, true}} {
		const trip = 40 * time.Millisecond
		mbitWay := func(rate float64) *way {
			return wayOf(trip, &link{rate: rate * mbit, buffer: 100 * time.Millisecond, calm: 1})
		}
		f := newFluid(t, 5, map[string]*way{"": mbitWay(12), "busy": mbitWay(6), "one": mbitWay(6)}, nil)
		f.offer("busy")
		d := f.connect(0)
		f.run(5 * time.Second)
		f.offer("one")
		f.tell(path.WaypointLoaded{Waypoint: "one", Addr: addrOf("one"), Gives: c.gives})
		for range 60 {
			f.tell(path.WaypointLoaded{Waypoint: "busy", Addr: addrOf("busy"), Until: f.now.Add(15 * time.Second), Gives: mbit})
			f.run(time.Second)
		}
		if joins := d.over("one") != nil; joins != c.joins {
			t.Errorf("one more would get %v bit/s: %v", c.gives, d.log)
		}
	}
}
