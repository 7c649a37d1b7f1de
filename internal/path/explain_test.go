package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// The loss that is shown of the direct path fades like the one that decides where messages go. That of a detour stays.
func TestWhyDirectLossFades(t *testing.T) {
	const trip = 30 * time.Millisecond
	s := newSelection(t, map[string]*pathWorth{"": {trip: trip, rate: 800, loss: 0.005}, "bob": {trip: trip, rate: 800, loss: 0.005}})
	s.offer("bob")
	s.connect()
	s.bulk(time.Minute)
	s.tell(path.ConnClosed{Token: s.token})
	explain := func() path.Explanation { return s.m.Explain(netip.AddrPortFrom(ip("web"), 80), netip.Addr{}, s.now) }

	fresh := explain()
	if d := fresh.Direct; d.Known.Loss == 0 || d.Wait <= trip {
		t.Errorf("direct, after a minute with losses: %v, and messages take %v", d.Known.Loss, d.Wait)
	}
	s.now = s.now.Add(10 * time.Minute)
	x := explain()
	if d := x.Direct; d.Known.Loss != 0 || d.Wait != trip {
		t.Errorf("direct, after ten minutes: %v, and messages take %v; want no loss and %v", d.Known.Loss, d.Wait, trip)
	}
	if is, was := x.Candidates[0].Known.Loss, fresh.Candidates[0].Known.Loss; is != was || is == 0 {
		t.Errorf("through bob: loss %v, was %v", is, was)
	}
}
