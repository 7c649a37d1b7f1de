package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// A raised number of subflows applies to existing connections. Newly excluded destinations get no detours from then
// on.
func TestReconfigured(t *testing.T) {
	even := &pathWorth{trip: 20 * time.Millisecond, rate: 100}
	s := newSelection(t, map[string]*pathWorth{"": even, "bob": even, "carol": even})
	s.offer("bob", "carol")
	s.connect()
	s.bulk(3 * time.Second)
	if n := len(s.subflows); n != 2 {
		t.Fatalf("%d subflows before, want 2", n)
	}
	s.tell(path.Reconfigured{Policy: path.DetourPolicy{Subflows: 3}})
	s.bulk(3 * time.Second)
	if n := len(s.subflows); n != 3 {
		t.Errorf("%d subflows, want 3", n)
	}
	s.tell(path.Reconfigured{Policy: path.DetourPolicy{Subflows: 3}, Exclude: []netip.Prefix{netip.PrefixFrom(ip("web"), ip("web").BitLen())}})
	s.connect()
	s.bulk(3 * time.Second)
	if n := len(s.subflows); n != 1 {
		t.Errorf("%d subflows to an excluded server", n)
	}
}
