package path_test

import (
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// When a waypoint's load ends, hosts return to it at different times, within four seconds.
func TestHostsReturnOneByOne(t *testing.T) {
	const hosts = 60
	returned := make([]int, 5) // by second
	for seed := range uint64(hosts) {
		s := newSelectionWith(t, map[string]*pathWorth{"": good(), "bob": good(), "carol": good()}, func(c *path.Config) { c.Seed = seed })
		s.offer("bob", "carol")
		s.tell(path.WaypointMeasured{Waypoint: "bob", Addr: ip("bob"), RTT: 5 * time.Millisecond})
		s.tell(path.WaypointMeasured{Waypoint: "carol", Addr: ip("carol"), RTT: 60 * time.Millisecond})
		s.tell(path.WaypointLoaded{Waypoint: "bob", Addr: ip("bob"), Until: s.now.Add(15 * time.Second)})
		s.connect()
		if s.over("carol") == nil {
			t.Fatalf("host %d: a loaded waypoint is taken: %v", seed, s.log)
		}
		ended := s.now
		for s.over("bob") == nil && s.now.Sub(ended) < 5*time.Second {
			s.tell(path.WaypointLoaded{Waypoint: "bob", Addr: ip("bob")}) // again and again, which does not delay it
			s.now = s.now.Add(dt)
			s.connect()
		}
		if took := int(s.now.Sub(ended) / time.Second); took < len(returned) {
			returned[took]++
		}
	}
	if most := slices.Max(returned); most > hosts/2 || returned[4] > 3 || hosts != returned[0]+returned[1]+returned[2]+returned[3]+returned[4] {
		t.Errorf("of %d hosts, so many return in each second: %v", hosts, returned)
	}
}
